"""The pairwise judge on the texts of the study: DA-DLM against BD3LM in every configuration of the paper.

    python -m research.judge texts --count 50 --planted wiki2015_val.jsonl.zst   # by SmolLM2, here
    OPENAI_BASE_URL=… OPENAI_API_KEY=… python -m research.judge texts --endpoint MODEL --planted …

Writes the kept texts of `research.texts` as samples (OUT/samples/NAME.jsonl) and runs `dadlm evaluate judge`
on each pair of models, and on planted pairs whose better side is known. Started again, it asks only what was
never asked.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from dadlm.cli.evaluate.judge import Judge
from dadlm.evaluate.subject import essence
from dadlm.evaluate.work import whole_file, write_result
from research.plan import pairs, plan
from research.quality import TRUTH, from_array, position_name, system_of, unpacked

LONG = [pair for pair in pairs() if plan()[pair[0]].length == "long"]
PAIRS = LONG + [(position_name(ours), theirs) for ours, theirs in LONG]


def samples(folder: Path, out: Path, count: int) -> None:
    """A file for every model: its first texts in every configuration, with their prompts."""
    with np.load(folder / TRUTH, allow_pickle=False) as truth:
        prompts, source = unpacked(truth["prompts"]), from_array(truth["facts"])["data"]["source"]
    lines: dict[str, list[str]] = {}
    for file in sorted(set(folder.glob("[!.]*.npz")) - {folder / TRUTH}):
        with np.load(file, allow_pickle=False) as arrays:
            facts, texts = system_of(from_array(arrays["facts"])), unpacked(arrays["texts"])
        about = {name: facts[name] for name in ("model", "configuration")}
        model = facts["model_facts"]
        about |= {"source": source, **essence(model), "weights": model["weights"]}
        lines.setdefault(facts["model"], []).extend(
            json.dumps({**about, "index": index, "prompt": prompt, "text": text})
            for index, (prompt, text) in enumerate(zip(prompts[:count], texts, strict=False))
        )
    for name, some in lines.items():
        with whole_file(out / f"{name}.jsonl") as handle:
            handle.write(("\n".join(some) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", help="what `research.texts write` wrote")
    parser.add_argument("--planted", required=True, help="real text, long documents")
    parser.add_argument("--planted-count", type=int, default=50)
    parser.add_argument("--count", type=int, default=100, help="texts of each configuration; 128 were kept")
    parser.add_argument("--judge", default="smollm2", help="a language model on this machine")
    parser.add_argument("--endpoint", default="", help="or one of an OpenAI-compatible server")
    parser.add_argument("--out", default="runs/study-judge")
    parser.add_argument("--results", default="research/results/judge")
    options = parser.parse_args()
    out = Path(options.out)
    samples(Path(options.folder), out / "samples", options.count)
    by: dict[str, Any] = {"judge": "" if options.endpoint else options.judge, "endpoint": options.endpoint}
    known = Judge(planted=options.planted, planted_count=options.planted_count, **by)
    trusted = {"planted": known.measure(out)["planted"]}
    for pair in PAIRS:
        files = [out / "samples" / f"{name}.jsonl" for name in pair]
        if all(file.exists() for file in files):
            name = "-against-".join(pair)
            result = Judge(samples=tuple(map(str, files)), **by).measure(out / name) | trusted
            if Path(options.judge).exists():  # a folder: its place is of no interest to others
                result["judge"] = Path(options.judge).name
            write_result(Path(options.results) / f"{name}.json", result)
            print(name, result["wins_a"], result["wins_b"], result["ties"], flush=True)


if __name__ == "__main__":
    main()
