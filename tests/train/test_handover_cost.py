"""What a hand-over may cost: after it validation is no worse than at it, by the tolerances of the log."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import config, metrics, text, tokenizer

from dadlm.train import Trainer
from dadlm.train.trainer import fresh_model, model_from

SAME, GRAPH = 0.005, 0.03  # nats a token: within a family; in reconstruction, where the graph begins


def curve(family: str, out: Path, origin: Path | None = None, **train: int) -> dict[int, float]:
    """Train on text of which enough is there, and give the validations by their steps."""
    settings: dict[str, Any] = {"lr": 2e-2, "ema": 0.99, "warmup": 20, "valid_rows": 64}
    settings |= {"log_every": 1000} | train
    run = replace(config(family, out, **settings), init_from=None if origin is None else str(origin))
    fresh = fresh_model(run.model, tokenizer(), 0)
    model = fresh if origin is None else model_from(origin, run.model, 0)
    Trainer(run, model, text(400, 1), text(64, 2), quiet=True).run()
    key = "valid_reconstruction" if family == "dadlm" else "valid_loss"
    return {int(entry["step"]): entry[key] for entry in metrics(out) if key in entry}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before") / "bd3lm"
    curve("bd3lm", folder, steps=500, valid_every=500)
    return folder


def test_within_a_family_no_validation_is_worse_than_the_hand_over(before: Path, tmp_path: Path) -> None:
    """Stricter than after 200 steps: an average that begins anew is 0.04 worse after 40, and recovers."""
    values = curve("bd3lm", tmp_path, before, steps=50, valid_every=10)
    assert len(values) == 6 and max(values.values()) <= values[0] + SAME


def test_where_the_graph_begins_it_is_paid_back_in_200_steps(before: Path, tmp_path: Path) -> None:
    at_the_end = metrics(before)[-1]["valid_loss"]
    values = curve("dadlm", tmp_path, before, steps=200, valid_every=200)
    assert values[200] <= min(values[0], at_the_end) + GRAPH
