"""Write the performance tables of README.md and docs from benchmarks/results and research/results.

    python -m tools.tables

What is between `<!-- bench:NAME -->` and `<!-- /bench -->` is replaced.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from dadlm.evaluate.subject import NAMES
from dadlm.model.pretrained import PRETRAINED
from research.files import read_results
from research.rivals import HEAD, rows_of, shown
from research.summaries_tables import ALL, SYSTEMS
from research.tables import table, with_interval
from research.text_tables import main_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SHIPPED_TEXTS = ROOT / "research" / "results" / "edges" / "shipped-texts.json"
RIVALS = ROOT / "research" / "results" / "rivals.json"
PAGES_OF_DOCS = ("choosing", "models", "performance", "results", "serving")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in PAGES_OF_DOCS)]
MARK = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.S)


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def steps() -> str:
    """Milliseconds of a denoising step, before and now, and what it is made of."""
    result = read("decode-h200-steps")
    before = {(row["system"], row["batch"]): row["ms"] for row in result["before"]["steps"]}
    found = {(row["system"], row["batch"]): row for row in result["steps"]}
    rows = []
    for name in dict.fromkeys(row["system"] for row in result["steps"]):
        cells = []
        for batch in (32, 1):
            row, then = found[name, batch], before.get((name, batch))
            cells += ["–" if then is None else f"{then:.2f}", f"{row['ms']:.2f}"]
        one = found[name, 1]
        rows.append([name, *cells, str(one["launches"]), f"{one['share_of_floor']:.0%}"])
    head = [f"{result['device']}, {result['dtype']}, prefix {result['prefix']}"]
    head += ["batch 32 before, ms", "now", "batch 1 before, ms", "now", "launches", "floor's share"]
    return table(head, rows)


def passes() -> str:
    """Milliseconds a pass of the shipped models in whole texts."""
    found = {
        (row["model"], row["nucleus"], row["batch"], row["decoding"]): row["ms"]
        for row in read("passes-h200")["passes"]
    }
    ways = [(batch, decoding) for batch in (1, 32) for decoding in ("FH", "T=8")]
    rows = []
    for name, which in SHIPPED.items():
        cells = []
        for way in ways:
            ms, base = found[(*which, *way)], found[("bd3lm", "standard", *way)]
            cells.append(f"{ms:.2f} ({ms / base:.2f})")
        rows.append([name, *cells])
    return table(["10M parameters", *(f"batch {batch}, {decoding}" for batch, decoding in ways)], rows)


def texts() -> str:
    """Tokens per second of whole texts."""
    result = read("decode-h200")
    rows = [
        [
            f"{row['system']}, {row['decoding']}",
            str(row["batch"]),
            f"{row['tokens_per_forward']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
        ]
        for row in sorted(result["texts"], key=lambda row: row["batch"])
    ]
    return table(["960 tokens after 64", "batch", "TPF", "seconds", "tokens/s"], rows)


def training() -> str:
    """Milliseconds of an optimiser step at both sizes, and what they are to BD3LM's."""
    sizes = {size: read(f"train-h200-{size}")["steps"] for size in ("paper", "lab")}
    base = {size: next(row["ms"] for row in rows if row["family"] == "bd3lm") for size, rows in sizes.items()}
    rows = [
        [
            paper["system"],
            *(
                cell
                for size, row in (("paper", paper), ("lab", lab))
                for cell in (f"{row['ms']:.1f}", f"{row['flop_use']:.0%}", f"{row['ms'] / base[size]:.2f}")
            ),
            f"{paper['peak_gib']:.0f}",
        ]
        for paper, lab in zip(sizes["paper"], sizes["lab"], strict=True)
    ]
    head = ["32 rows of 1,024 tokens"]
    for size in ("paper's size", "10M"):
        head += [f"{size}, ms", "of the matrix ceiling", "to BD3LM"]
    return table([*head, "peak GiB, paper's"], rows)


def serving() -> str:
    """Requests and tokens per second and times to the first block, a row per model and number of clients."""
    rows = [
        [
            f"{NAMES[result['family']]}, {row['clients']}",
            f"{row['requests_per_second']:.1f}",
            f"{row['tokens_per_second']:.0f}",
            f"{row['first_block_p50']:.2f} / {row['first_block_p99']:.2f}",
            f"{row['total_p50']:.1f} / {row['total_p99']:.1f}",
            f"{row['tokens_per_cpu_second']:.0f}",
            f"{row['times_alone_per_cpu']:.2f}",
            str(row["fewest_answers_of_a_client"]),
            f"{row['error_count']} / {row['different_from_solo']} of {row['requests']}",
        ]
        for result in (read("serving-cpu-dadlm"), read("serving-cpu-ar"))
        for row in result["load"]
    ]
    head = [
        "model, clients",
        "requests/s",
        "tokens/s",
        "first block, s (p50 / p99)",
        "whole text, s (p50 / p99)",
    ]
    head += [
        "tokens per CPU second",
        "times alone",
        "fewest answers of a client",
        "errors / other than alone",
    ]
    return table(head, rows)


def study() -> str:
    """The study's main comparison; docs/results.md has the others (`research.page`)."""
    return main_table(read_results())


def summaries() -> str:
    """All pairs together, a row for each system; docs/results.md has each set."""
    numbers = read_results().summaries
    assert numbers is not None
    pooled, times = numbers[ALL], numbers["times"]
    rows = [
        [
            SYSTEMS[label].shown,
            with_interval(found["average"], 2),
            f"{found['tpf']['mean']:.2f}",
            f"{found['tokens'] / pooled['pairs']:.0f}",
            f"{times[label]['served']:.0f}" if label in times else "–",
        ]
        for label, found in pooled["systems"].items()
        if not (SYSTEMS[label].paper and SYSTEMS[label].infill)
    ]
    return table(["", "ROUGE", "TPF", "tokens of a summary", "ms, served"], rows)


SHIPPED = {
    "BD3LM": ("bd3lm", "standard"),
    "DA-DLM, as in the paper": ("dadlm", "standard"),
    'DA-DLM, `nucleus="position"`': ("dadlm", "position"),
    "BD3LM with edges": ("bd3lm-edges", "standard"),
    "DA-DLM with edges": ("dadlm-edges", "standard"),
}
"""Row of a table: model and nucleus."""


def _perplexities() -> dict[tuple[str, str, int], str]:
    """Perplexity under AR by model, nucleus and steps a block."""
    found = json.loads(SHIPPED_TEXTS.read_text(encoding="utf-8"))
    return {
        (one["model"], one["nucleus"], one["steps"]): "{mean:,.0f} [{low:,.0f}, {high:,.0f}]".format(
            **{name: math.exp(nats) for name, nats in one["nats"].items()}
        )
        for one in found
    }


T8 = 2.27
"""Tokens a pass of random remasking in 8 steps, N = 16."""


def shipped() -> str:
    """Texts of the models that ship with the package, at equal steps."""
    found, steps = _perplexities(), (8, 4, 2, 1)
    rows = [[row, *(found.get((*which, T), "–") for T in steps)] for row, which in SHIPPED.items()]
    return table(["steps per block (tokens per pass)", "8 (2.3)", "4 (4.0)", "2 (8)", "1 (16)"], rows)


def short() -> str:
    """What the README claims: the tour, texts at equal steps, and what a step costs."""
    texts, rows = _perplexities(), []
    found = json.loads(RIVALS.read_text(encoding="utf-8"))
    dilated = {one["model"]: shown(one)[5] for one in found if one["way"].endswith(" dilated 4")}
    ms = {
        (row["model"], row["nucleus"]): row["ms"]
        for row in read("passes-h200")["passes"]
        if (row["batch"], row["decoding"]) == (32, "T=8")
    }
    for row, which in SHIPPED.items():
        facts = PRETRAINED / f"tour-{which[0]}" / "measured.json"
        valid = "–"
        if which[1] == "standard" and facts.exists():
            valid = f"{json.loads(facts.read_text(encoding='utf-8'))['stored']['valid']['1']:.1%}"
        cells = [
            texts.get((*which, 4), "–"),
            dilated.get(which[0] + "@position" * (which[1] == "position"), "–"),
        ]
        rows.append([row, valid, *cells, f"{ms[which]:.2f}"])
    head = ["", "valid blocks, one pass", "perplexity at 4 tokens per pass: random steps", "dilated steps"]
    head += ["ms per pass, H200"]
    return table(head, rows)


def rivals() -> str:
    """Ways to write several tokens at once, and AR, on the same prompts."""
    return table(HEAD, rows_of(json.loads(RIVALS.read_text(encoding="utf-8"))))


def per_token() -> str:
    """Milliseconds a token on a GPU: AR's is a step alone, the others' are of whole texts."""
    found = {
        (row["model"], row["nucleus"], row["batch"]): row["ms"] / T8
        for row in read("passes-h200")["passes"]
        if row["decoding"] == "T=8"
    }
    ar = {row["batch"]: row["ms"] for row in read("decode-h200-lab")["steps"] if row["system"] == "AR"}
    rows = [["AR", *(f"{ar[batch]:.2f}" for batch in (1, 32))]]
    rows += [
        [name, *(f"{found[(*which, batch)]:.2f}" for batch in (1, 32))] for name, which in SHIPPED.items()
    ]
    return table(["10M parameters, T = 8, H200", "batch 1, ms per token", "batch 32, ms per token"], rows)


TABLES = {
    "rivals": rivals,
    "per_token": per_token,
    "shipped": shipped,
    "short": short,
    "steps": steps,
    "passes": passes,
    "texts": texts,
    "training": training,
    "serving": serving,
    "study": study,
    "summaries": summaries,
}


def renewed(page: str) -> str:
    """A page with all its tables made anew."""
    return MARK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
