"""Ship the models of `dadlm tour`, in 8 bits, measured, with their cards.

dadlm tour --out tour && python -m tools.ship_tour tour
"""

import argparse
import json
from pathlib import Path
from typing import Any

from dadlm.model import Model, load
from dadlm.model.checkpoint import write_model
from dadlm.model.files import WEIGHTS, whole_folder, write_json
from dadlm.model.pretrained import PRETRAINED
from dadlm.tour.language import BLOCKS, Language, make_language
from dadlm.tour.measure import divergence, validity
from dadlm.tour.run import STEPS
from tools.ship import CARD, MEASURED, card

TESTS = 1024


def ship_tour(tour: Path) -> None:
    seed = json.loads((tour / "tour.json").read_text(encoding="utf-8"))["seed"]
    language = make_language(seed)
    for family in ("bd3lm", "dadlm"):
        exact, name = load(tour / family / "last"), f"tour-{family}"
        with whole_folder(PRETRAINED / name, may_replace=(CARD, MEASURED)) as folder:
            write_model(folder, exact, bits=8)
            facts = {
                "kind": "tour",
                "name": name,
                "family": family,
                "seed": seed,
                "parameters": sum(parameter.numel() for parameter in exact.parameters()),
                "bytes": (folder / WEIGHTS).stat().st_size,
                "blocks": TESTS,
                "float32": measure(exact, language, seed),
                "stored": measure(load(folder), language, seed),
            }
            write_json(folder / MEASURED, facts)
            (folder / CARD).write_text(card(facts), encoding="utf-8")


def measure(model: Model, language: Language, seed: int) -> dict[str, Any]:
    """As `dadlm tour` does, on the same texts."""
    tests = language.walks(TESTS, BLOCKS, seed + 3)
    half = tests[:, : BLOCKS // 2]
    shares = {str(steps): validity(model, language, half, steps, seed).valid for steps in STEPS}
    return {"valid": shares, "divergence": divergence(model, language, tests)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ship the models of a tour with dadlm.")
    parser.add_argument("tour", type=Path, help="folder that `dadlm tour` wrote")
    ship_tour(parser.parse_args().tour)


if __name__ == "__main__":
    main()
