"""MAUVE of the texts that `research.edge_texts --keep` has kept, against the true continuations.

    python -m research.edge_mauve KEPT --valid SHARDS --out FILE

Features are MiniLM's (from its package, without a hub), so values cannot be compared with those of GPT-2's
features. With so few texts only rows of one table can be compared.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from dadlm.evaluate.language_models import open_language_model
from dadlm.evaluate.mauve import mauve
from dadlm.model import load
from dadlm.tokens import Rows, Shards
from research.edge_texts import NEW, PROMPT, held_out


def main() -> None:
    parser = argparse.ArgumentParser(description="MAUVE of kept texts")
    parser.add_argument("kept", type=Path)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer, reader = load("ar").tokenizer, open_language_model("minilm", "cpu")
    assert tokenizer is not None

    def features(ids: np.ndarray) -> np.ndarray:
        found = reader.score([tokenizer.decode(row.tolist()) for row in ids], [""] * len(ids)).features
        assert found is not None
        return found

    files, found = sorted(options.kept.glob("*.npy")), []
    count = len(np.load(files[0], allow_pickle=False))
    rows = held_out(Rows.from_shards(Shards.open(options.valid), 1024), count)
    true = features(rows[:, PROMPT : PROMPT + NEW].numpy())
    print("| texts | MAUVE |\n|---|---|")
    for file in files:
        value = mauve(true, features(np.load(file, allow_pickle=False)))
        model, nucleus, way = file.stem.rsplit("-", 2)
        steps = {"steps": int(way)} if way.isdigit() else {"way": way}  # such as "entropy 8.0"
        found.append({"model": model, "nucleus": nucleus, **steps, "mauve": value})
        print(f"| {file.stem} | {value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}] |", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
