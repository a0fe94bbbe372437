"""Write the tables of docs/results.md, docs/samples.md and the figures of both from research/results.

    python -m research.page                     # from the files that are there
    python -m research.page --take runs/study   # copy the small files of new runs there first

Tables between `<!-- study:NAME -->` and `<!-- /study -->` are replaced. Nothing is typed in by hand: a row
without a file is left out, and missing runs are listed below the table.
"""

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import wrap

from dadlm.evaluate.pairs import in_words
from research.claims import claims_table
from research.figures import QUALITIES, draw_curves, draw_texts
from research.files import FOLDER, Facts, Results, read_results, take
from research.plan import SIZES, WIKINEWS, WIKIPEDIA, Pair, Role, pairs, plan
from research.samples import samples_page
from research.summaries_tables import tables
from research.tables import (
    ablation_table,
    differences_table,
    perplexity_table,
    probe_table,
    reconstruction_table,
    training_table,
)
from research.text_tables import (
    judge_table,
    latency_table,
    models_of,
    quality_table,
    references_table,
    speed_table,
    tpf_table,
)

DOCS = Path(__file__).parents[1] / "docs"
CURVES = "study-curves.svg"
MARK = re.compile(r"(<!-- study:(\w+) -->\n).*?(<!-- /study -->)", re.S)
TITLES = {"mauve": "MAUVE", "judge_perplexity": "Judge perplexity"}


def renewed(page: str, results: Results) -> str:
    """The page with all its tables made anew."""
    return MARK.sub(lambda mark: mark[1] + PARTS[mark[2]](results) + mark[3], page)


def part(*tables: str, missing: Iterable[str] = (), command: str = "") -> str:
    """Tables that are there, how to measure them, and what is missing."""
    parts = [f"```sh\n{command}\n```\n"] if command else []
    parts += [table for table in tables if table] or ["Not measured yet.\n"]
    if names := ", ".join(f"`{name}`" for name in missing):
        parts.append(f"Missing: {names}.\n")
    return "\n".join(parts)


def differences(results: Results, text: str = WIKIPEDIA) -> str:
    wanted = pairs(text)
    lacking = [":".join(pair) for pair in wanted if pair not in results.pairs]
    return part(differences_table(results, text), missing=lacking, command=_measure(wanted))


def perplexity(results: Results, text: str = WIKIPEDIA) -> str:
    names = [name for name, run in plan().items() if run.role == "final" and run.text == text]
    lacking = [name for name in names if name not in results.perplexity]
    return part(perplexity_table(results, text), missing=lacking, command=_measure(names))


def texts(results: Results) -> str:
    """On what, read by whom; the references; the figures."""
    result = results.generation
    if result is None:
        return part()
    facts = (
        f"{result['samples']:,} prompts of {result['prompt_tokens']} tokens from {result['data']['source']}, "
        f"continued by {result['new_tokens']} tokens; {result['device']}, {result['dtype']}; judge: "
        f"{result['judge_lm']}; features of MAUVE: {result['embedder']}.\n"
    )
    drawn = [quality for quality in QUALITIES if any(row[quality] for row in result["rows"])]
    figures = [
        f"![{TITLES[one]} over {speed} tokens per forward pass](pictures/{QUALITIES[one]}{end}.svg)\n"
        for one in drawn
        for speed, end in (("raw", "-raw"), ("adjusted", ""))
    ]
    return part(facts, references_table(result), *figures)


def texts_of(N: int) -> Callable[[Results], str]:
    def made(results: Results) -> str:
        result = results.generation
        if result is None:
            return part()
        return part(quality_table(result, N), tpf_table(result, N), missing=_lacking(result, N))

    return made


def _lacking(result: Facts, N: int) -> list[str]:
    """Configurations that some, but not all models of a block size have."""
    seen = {(row["model"], row["configuration"]) for row in result["rows"] if row["block_size"] == N}
    labels = sorted({label for _, label in seen})
    return [
        f"{name} {label}" for name in models_of(result, N) for label in labels if (name, label) not in seen
    ]


def speed(results: Results) -> str:
    return part(latency_table(results), speed_table(results))


def judged(results: Results) -> str:
    """How far the judge can be trusted, then what it said, if it can."""
    if not results.judge:
        return part()
    first = next(iter(results.judge.values()))
    lines = "".join(f"- {line}\n" for line in in_words(first["planted"]))
    said = [judge_table(results)] if first["planted"]["trusted"] else []
    return part(f"Judge: {first['judge']}.\n\n{lines}", *said)


def ablations(results: Results) -> str:
    return part(ablation_table(results), missing=_untrained(results, "ablation"))


def probes(results: Results) -> str:
    return part(probe_table(results), missing=_untrained(results, "probe"))


def training(results: Results) -> str:
    figure = f"![Validation while training](pictures/{CURVES})\n"
    return part(training_table(results), figure, missing=_untrained(results, "base", "final"))


def _untrained(results: Results, *roles: Role) -> list[str]:
    return [name for name, run in plan().items() if run.role in roles and name not in results.runs]


def _measure(names: list[str] | list[Pair]) -> str:
    words = (name if isinstance(name, str) else ":".join(name) for name in names)
    command = f"python -m research.study measure {' '.join(words)} --valid SHARDS"
    return " \\\n    ".join(wrap(command, 100, break_on_hyphens=False))


PARTS: dict[str, Callable[[Results], str]] = {
    "claims": lambda results: part(claims_table(results)),
    "reconstruction": lambda results: part(reconstruction_table(results)),
    "differences": differences,
    "perplexity": perplexity,
    "news": lambda results: differences(results, WIKINEWS),
    "news_perplexity": lambda results: perplexity(results, WIKINEWS),
    "texts": texts,
    **{f"texts_{N}": texts_of(N) for N in SIZES},
    "judge": judged,
    "speed": speed,
    "ablations": ablations,
    "probes": probes,
    "training": training,
    "summaries": lambda results: part(tables(results.summaries) if results.summaries else ""),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--take", type=Path, help="folder of runs whose small files are copied first")
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder with results.md")
    options = parser.parse_args()
    if options.take:
        take(options.take, options.results)
    results, page = read_results(options.results), options.docs / "results.md"
    (options.docs / "pictures").mkdir(exist_ok=True)
    draw_curves(results, options.docs / "pictures" / CURVES)
    if results.generation:
        draw_texts(results.generation, options.docs / "pictures")
    page.write_text(renewed(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    page.with_name("samples.md").write_text(samples_page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
