"""Ship counted token edges, once for the shipped models dadlm and bd3lm.

    python -m tools.ship_edges FOLDER --data wiki2015_val.jsonl.zst --counted count.json

FOLDER is what `dadlm edges count` wrote, or a run of research.routes that trained such edges beside a frozen
model. The edges depend on the text and the tokenizer, not on the model, and go into one shared file; the
folders NAME-edges hold a configuration, measured.json and a card. count.json is what `dadlm edges count
--json` printed; facts of first-order edges that have shipped already, which it lacks, are kept.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from dadlm.evaluate import perplexity, rows_of
from dadlm.model import Model, load
from dadlm.model.checkpoint import read_config, weights
from dadlm.model.files import CONFIG, WEIGHTS, digest, save_tensors, write_json
from dadlm.model.pretrained import EDGES, PRETRAINED, weight_files
from dadlm.model.quantised import quantise
from tools.ship import CARD, CURVE, MEASURED, card

BASES = ("dadlm", "bd3lm")
ROWS, LENGTH = 20, 256


def put_edges(edged: Model, target: Path = PRETRAINED) -> list[Path]:
    """Write the edges of a model to target/edges, and the folders NAME-edges that take them in."""
    (target / EDGES).mkdir(exist_ok=True)
    save_tensors(quantise(own_tensors(edged)), target / EDGES / WEIGHTS)
    folders = [target / f"{base}-{EDGES}" for base in BASES]
    for folder, base in zip(folders, BASES, strict=True):
        folder.mkdir(exist_ok=True)
        shape = asdict(read_config(target / base)) | {
            name: getattr(edged.config, name) for name in ("edge", "edge_rank", "edge_second_rank")
        }
        about = {"model_type": "dadlm", "format": 2, "weights_sha256": digest(*weight_files(folder))}
        write_json(folder / CONFIG, about | shape)
    return folders


def own_tensors(edged: Model) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights(edged).items() if name.startswith("head.edge.")}


def ship_edges(source: str, counted: dict[str, Any], data: str) -> None:
    """Put the edges of the model in `source` beside the shipped models, measured, with their cards."""
    edged, orders = load(source), orders_of(source, counted)
    for folder, base in zip(put_edges(edged), BASES, strict=True):
        plain, stored = load(PRETRAINED / base), load(folder)
        facts = {
            "kind": EDGES,
            "name": folder.name,
            "base": base,
            "family": plain.config.family,
            "parameters": sum(parameter.numel() for parameter in stored.parameters()),
            "edge_parameters": sum(tensor.numel() for tensor in own_tensors(edged).values()),
            "bytes": (PRETRAINED / EDGES / WEIGHTS).stat().st_size,
            "orders": orders,
            "data": {"file": Path(data).name, "row_length": LENGTH},
            "rows": ROWS,
            "one_pass": {base: one_pass(plain, data), folder.name: one_pass(stored, data)},
        }
        write_json(folder / MEASURED, facts)
        (folder / CARD).write_text(card(facts), encoding="utf-8")


def orders_of(source: str, counted: dict[str, Any]) -> dict[str, Any]:
    """What was counted and trained for the edges of each order."""
    orders = {
        name: {key: facts[key] for key in ("rank", "tokens", "pairs")}
        for name, facts in counted["orders"].items()
    }
    if "first" not in orders:
        shipped = json.loads((PRETRAINED / f"{BASES[1]}-{EDGES}" / MEASURED).read_text(encoding="utf-8"))
        return {"first": shipped["orders"]["first"]} | orders
    return {name: facts | {"training": training_of(Path(source))} for name, facts in orders.items()}


def training_of(run: Path) -> dict[str, Any] | None:
    """What the edges learned from after they were counted, if anything."""
    if not (run / CURVE).is_file():
        return None
    facts = json.loads((run / CURVE).read_text(encoding="utf-8"))
    beside = read_config(run).family
    return {"beside": beside} | {
        key: facts[key] for key in ("steps", "tokens_per_step", "lr", "seed", "text")
    }


def one_pass(model: Model, data: str) -> dict[str, float]:
    rows, _ = rows_of(model, data, length=LENGTH)
    return perplexity(model, rows, count=ROWS, passes=1, quiet=True)["nll"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ship token edges with dadlm.")
    parser.add_argument("source", help="folder of a model with edges")
    parser.add_argument("--data", required=True, help="text to measure on, not counted")
    parser.add_argument("--counted", type=Path, required=True, help="what `dadlm edges count --json` printed")
    options = parser.parse_args()
    ship_edges(options.source, json.loads(options.counted.read_text(encoding="utf-8")), options.data)


if __name__ == "__main__":
    main()
