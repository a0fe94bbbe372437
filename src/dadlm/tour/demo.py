"""The demo: models that ship with the package, first on a language whose truth is known, then on real text.

A section is a function of (folder, prompt, seed, console) that returns the numbers it showed as plain data.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dadlm.decode import generate, stream
from dadlm.decode.picture import draw_step, new_figure
from dadlm.decode.show import show_step
from dadlm.errors import ConfigError
from dadlm.model import load
from dadlm.model.files import write_json
from dadlm.threads import one_thread
from dadlm.tour.animation import animate
from dadlm.tour.language import LENGTH, SUCCESSORS, make_language
from dadlm.tour.measure import validity
from dadlm.tour.real_text import SHOWN, SYSTEMS, compare, completions, show_completion
from dadlm.tour.report import introduce, show_samples, write_text

SEED = 0
"""Of the language that the shipped models of the tour were trained on."""
WRITTEN = ("demo.json", "dag.svg", "dag.png", "tour.svg", "valid.txt")
_BLOCKS, _BEFORE, _NODES = 1024, 4, 16
_NEXT = """\
[bold]Next[/bold]
  dadlm generate "The history of"           complete a text; without one, a loop at the terminal
  dadlm serve                               OpenAI's API, and a page that draws every step
  dadlm tour                                train the two models of the first part yourself
  dadlm train small --data.train FILE.txt   train on your own text
  dadlm models                              what there is (after `make demo`: .venv/bin/dadlm)"""


@one_thread()
def show_demo(out: Path, prompt: str, seed: int = 0, quiet: bool = False) -> dict[str, Any]:
    """Show every section; returns (and writes to demo.json) every number that is shown."""
    new_figure(1, 1)  # fails at once if the extra is missing
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(quiet=quiet, highlight=False)
    result: dict[str, Any] = {"prompt": prompt, "seed": seed}
    for name, section in SECTIONS.items():
        result[name] = section(out, prompt, seed, console)
    write_json(out / WRITTEN[0], result)
    console.print(_NEXT, soft_wrap=True)
    return result


def the_idea(out: Path, prompt: str, seed: int, console: Console) -> dict[str, Any]:
    """Four words in one forward pass: BD3LM mixes four phrases up, DA-DLM draws one of them."""
    language = make_language(SEED)
    models = {"BD3LM": load("tour-bd3lm"), "DA-DLM": load("tour-dadlm")}
    walks = language.walks(_BLOCKS, _BEFORE, SEED + 3)
    introduce(language, console)
    console.print(
        "[bold]One forward pass of DA-DLM.[/bold] Four lanes, one for each phrase; a path picks one:"
    )
    before = language.phrases[walks[0]].flatten().tolist()
    how: dict[str, Any] = {"max_new_tokens": LENGTH, "sampler": "random", "steps": 1}
    event = next(iter(stream(models["DA-DLM"], before, seed=seed, **how)))
    show_step(event, console)
    console.print()
    show_samples(models, language, walks, seed, console)
    shares = {name: validity(model, language, walks, 1, seed).valid for name, model in models.items()}
    table = Table(title=f"Valid phrases of {_BLOCKS:,}, four words in one pass", title_justify="left")
    for name in ("words drawn independently", *shares):
        table.add_column(name, justify="right")
    table.add_row(f"{SUCCESSORS ** (1 - LENGTH):.1%}", *(f"{share:.1%}" for share in shares.values()))
    console.print(table)
    for file in ("dag.svg", "dag.png"):
        draw_step(event, out / file, title=f"DA-DLM after “{language.tokenizer.decode(before[-LENGTH:])}”")
    animate(models, language, walks[0], shares, out / "tour.svg")
    write_text(out / "valid.txt", language, SEED)
    console.print(
        f"pictures: {out}/tour.svg (in motion: open it in a browser), {out}/dag.svg\n", markup=False
    )
    return {"valid": shares, "independent": SUCCESSORS ** (1 - LENGTH)}


def real_text(out: Path, prompt: str, seed: int, console: Console) -> list[dict[str, Any]]:
    """Models of 10M parameters on English: texts and their perplexity at equal steps."""
    console.print("[bold]Real text[/bold], by models of 10M parameters that read Wikipedia:\n")
    models = {system: load(name) for system, name in SYSTEMS.items()}
    rows = []
    for row in completions(models, prompt, seed, judge=models["AR"]):
        rows.append(row)
        if row.system in SHOWN:
            show_completion(row, prompt, console)
    compare(rows, console)
    console.print()
    return [asdict(row) for row in rows]


def lossless(out: Path, prompt: str, seed: int, console: Console) -> dict[str, Any]:
    """The AR model's own text in fewer passes of it: BD3LM with edges drafts, AR verifies."""
    target, draft = load("ar"), load("bd3lm-edges")
    alone = generate(target, prompt, mode="ar", seed=seed)
    drafted = generate(target, prompt, mode="lossless", draft=draft, tree=_NODES, seed=seed)
    tokens, cycles = len(drafted.tokens[0]), drafted.cycles[0]
    same = "the same text" if alone.tokens == drafted.tokens else "another text"
    console.print(
        f"[bold]Lossless.[/bold] AR writes {tokens} tokens in {alone.forward_passes[0]} passes. Drafted by "
        f"BD3LM with edges and verified by AR, {same} takes {cycles} passes of each: {tokens / cycles:.1f} "
        "tokens a cycle. Worth it where a pass over 16 tokens takes about as long as over one.\n"
    )
    return {"tokens": tokens, "cycles": cycles, "same": alone.tokens == drafted.tokens}


SECTIONS: dict[str, Callable[[Path, str, int, Console], Any]] = {
    "idea": the_idea,
    "real_text": real_text,
    "lossless": lossless,
}
