"""The tour: train on a language whose truth is known, and see what the graph adds.

BD3LM is trained first; from there, BD3LM and DA-DLM are trained on for the same number of steps. The second
tour has a language with a shared word, and models with token edges beside the plain ones.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dadlm.decode.picture import new_figure
from dadlm.errors import ConfigError
from dadlm.evaluate import bootstrap, score_rows
from dadlm.model import Model, load
from dadlm.model.config import Family
from dadlm.model.files import write_json
from dadlm.recipes import recipe
from dadlm.threads import one_thread
from dadlm.tokens import Rows
from dadlm.tour.demo import WRITTEN
from dadlm.tour.language import BLOCKS, LENGTH, Language, make_language
from dadlm.tour.measure import divergence, validity
from dadlm.tour.report import draw, folder, introduce, report, show_samples, write_text
from dadlm.train import Trainer
from dadlm.train.trainer import fresh_model, model_from

STEPS = (1, 2, 4)
COMMON_STEPS, SIDE_BY_SIDE_STEPS = 500, 800
EDGES = {"edge": "bilinear", "edge_rank": 16}
PLAIN: dict[str, tuple[Family, dict[str, Any]]] = {"BD3LM": ("bd3lm", {}), "DA-DLM": ("dadlm", {})}
WITH_EDGES = PLAIN | {"BD3LM, edges": ("bd3lm", EDGES), "DA-DLM, edges": ("dadlm", EDGES)}


@one_thread()
def take_tour(out: Path, seed: int = 0, quiet: bool = False, edges: bool = False) -> dict[str, Any]:
    """Train, measure, draw; returns (and writes to tour.json) every number that is shown. `edges`: the second
    tour."""
    new_figure(1, 1)  # fails before minutes of training if the extra is missing
    language, console = make_language(seed, shares_word=edges), Console(quiet=quiet)
    introduce(language, console)
    _clear(out)
    write_text(out / "valid.txt", language, seed)
    start = _train("bd3lm", COMMON_STEPS, out / "common", None, language, seed, quiet)
    origin = out / "common" / "last"
    models = {
        name: _train(family, SIDE_BY_SIDE_STEPS, out / folder(name), origin, language, seed, quiet, **shape)
        for name, (family, shape) in (WITH_EDGES if edges else PLAIN).items()
    }
    tests = language.walks(1024, BLOCKS, seed + 3)
    divergences = {name: divergence(model, language, tests) for name, model in models.items()}
    shares = {
        name: [validity(model, language, tests[:, : BLOCKS // 2], steps, seed) for steps in STEPS]
        for name, model in models.items()
    }
    rows = Rows.from_ids(language.rows(512, BLOCKS, seed + 4).flatten(), BLOCKS * LENGTH)
    scores = {name: score_rows(model, rows, batch_size=128).reconstruction for name, model in models.items()}
    pair = ("DA-DLM, edges", "BD3LM, edges") if edges else ("DA-DLM", "BD3LM")
    difference = bootstrap(scores[pair[0]] - scores[pair[1]])
    show_samples(models, language, tests, seed, console)
    report(divergences, shares, difference, pair, language, console)
    result = {
        "seed": seed,
        "bound": language.total_correlation,
        "divergence": divergences,
        "validity": {name: [asdict(one) for one in rows] for name, rows in shares.items()},
        "reconstruction_difference": asdict(difference),
    }
    write_json(out / "tour.json", result)
    draw(out, models, language, divergence(start, language, tests), tests[:, : BLOCKS // 2])
    drawn = f"\npictures: {out}/divergence.svg (the curve), {out}/dag.svg (one block's graph); also as .png"
    console.print(drawn, markup=False)
    return result


def _clear(out: Path) -> None:
    """Remove what an earlier tour left, and nothing else."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another --out")
    others = {file.name for file in out.iterdir()} - set(WRITTEN) if out.exists() else set()
    if others and not (out / "tour.json").exists():
        raise ConfigError(f"{out} holds something else than an earlier tour; choose another --out")
    for name in ("common", *map(folder, WITH_EDGES)):
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "tour.json", {})  # marks the folder as ours, should the tour be interrupted


def _train(
    family: str,
    steps: int,
    out: Path,
    origin: Path | None,
    language: Language,
    seed: int,
    quiet: bool,
    **shape: Any,
) -> Model:
    run = recipe(f"tour-{family}", out=str(out), init_from=None if origin is None else str(origin))
    run = replace(run, train=replace(run.train, steps=steps, seed=seed), model=replace(run.model, **shape))
    fresh = origin is None
    model = fresh_model(run.model, language.tokenizer, seed) if fresh else model_from(origin, run.model, seed)
    context = BLOCKS * LENGTH
    rows = Rows.from_ids(language.rows(4096, BLOCKS, seed + 1).flatten(), context)
    valid = Rows.from_ids(language.validation(seed).flatten(), context)
    walks = language.walks(256, BLOCKS, seed + 2)

    def probe(model: Model) -> dict[str, float]:
        return {"divergence": divergence(model, language, walks)}

    if Trainer(run, model, rows, valid, quiet=quiet, probe=probe).run().interrupted:
        raise KeyboardInterrupt  # training can be resumed, a tour cannot
    return load(out / "last")
