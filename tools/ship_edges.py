"""Ship token edges that `dadlm edges count` made, once for the shipped models dadlm and bd3lm.

    python -m tools.ship_edges ./bd3lm-e128 --data wiki2015_val.jsonl.zst --counted count.json

The edges know the text and the tokenizer, not the model, and go into one file; the folders NAME-edges hold a
configuration, measured.json and a card. count.json is what `dadlm edges count --json` printed.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dadlm.evaluate import perplexity, rows_of
from dadlm.model import Model, load
from dadlm.model.checkpoint import weights
from dadlm.model.files import CONFIG, WEIGHTS, digest, save_tensors, whole_folder, write_json
from dadlm.model.pretrained import EDGES, PRETRAINED, weight_files
from dadlm.model.quantised import quantise
from tools.ship import CARD, MEASURED, card

BASES = ("dadlm", "bd3lm")
ROWS, LENGTH = 20, 256


def ship_edges(source: str, counted: dict[str, Any], data: str, target: Path = PRETRAINED) -> None:
    """Write target/edges and target/NAME-edges for every base."""
    model = load(source)
    own = {name: tensor for name, tensor in weights(model).items() if name.startswith("head.edge.")}
    with whole_folder(target / EDGES) as folder:
        save_tensors(quantise(own), folder / WEIGHTS)
    for base in BASES:
        folder = target / f"{base}-{EDGES}"
        folder.mkdir(exist_ok=True)
        plain = load(target / base)
        shape = asdict(plain.config) | {"edge": "bilinear", "edge_rank": model.config.edge_rank}
        about = {"model_type": "dadlm", "format": 2, "weights_sha256": digest(*weight_files(folder))}
        write_json(folder / CONFIG, about | shape)
        stored = load(folder)
        facts = {
            "kind": EDGES,
            "name": folder.name,
            "base": base,
            "family": plain.config.family,
            "parameters": count(stored),
            "edge_parameters": sum(tensor.numel() for tensor in own.values()),
            "rank": model.config.edge_rank,
            "bytes": (target / EDGES / WEIGHTS).stat().st_size,
            "tokens": counted["tokens"],
            "pairs": counted["pairs"],
            "data": {"file": Path(data).name, "row_length": LENGTH},
            "rows": ROWS,
            "one_pass": {base: one_pass(plain, data), folder.name: one_pass(stored, data)},
        }
        write_json(folder / MEASURED, facts)
        (folder / CARD).write_text(card(facts), encoding="utf-8")


def count(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def one_pass(model: Model, data: str) -> dict[str, float]:
    rows, _ = rows_of(model, data, length=LENGTH)
    return perplexity(model, rows, count=ROWS, passes=1, quiet=True)["nll"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ship token edges with dadlm.")
    parser.add_argument("source", help="folder that `dadlm edges count` wrote")
    parser.add_argument("--data", required=True, help="text to measure on, not counted")
    parser.add_argument("--counted", type=Path, required=True, help="what `dadlm edges count --json` printed")
    options = parser.parse_args()
    ship_edges(options.source, json.loads(options.counted.read_text(encoding="utf-8")), options.data)


if __name__ == "__main__":
    main()
