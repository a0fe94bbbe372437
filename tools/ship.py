"""Make a trained model one of those that ship with the package: 8 bits, measured, with its card.

    python -m tools.ship runs/lab-dadlm dadlm --data validation.jsonl.zst
    python -m tools.ship --cards            # write the cards anew after a change of their text

Every number of a card comes from measured.json beside it, which only this script writes. The loss of quality
is that of the 8-bit model against its own float32 weights, on the same rows and masks. Of a run and its
earlier stages only training/state.json is read, or curve.json of research.routes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from dadlm.errors import CheckpointError
from dadlm.evaluate import perplexity, reconstruction, rows_of
from dadlm.model import Model, load
from dadlm.model.checkpoint import locate, write_model
from dadlm.model.files import WEIGHTS, whole_folder, write_json
from dadlm.model.pretrained import PRETRAINED, shipped
from dadlm.tokens import Rows
from dadlm.train.checkpoint import read_progress
from research.tables import table

HERE = Path(__file__).parent
CARD, MEASURED, TOKENIZER, CURVE = "README.md", "measured.json", "tokenizer.json", "curve.json"
BOUND = "The perplexity is an upper bound (first-hitting decoding, temperature 1, top_p 1).\n"
SYSTEMS = {"ar": "autoregressive", "bd3lm": "BD3LM (block diffusion)", "dadlm": "DA-DLM"}


def ship(run: Path, name: str, data: str, count: int, device: str, target: Path = PRETRAINED) -> Path:
    """Write target/NAME, whole or not at all; the tokenizer lies beside it, shared by all models there."""
    exact = load(locate(run), device)
    rows, about = rows_of(exact, data)
    with whole_folder(target / name, may_replace=(CARD, MEASURED)) as folder:
        write_model(folder, exact, bits=8)
        stored = load(folder, device)
        facts = {
            "name": name,
            "family": exact.config.family,
            "parameters": sum(parameter.numel() for parameter in exact.parameters()),
            "shape": {key: getattr(exact.config, key) for key in _shape(exact)},
            "bytes": (folder / WEIGHTS).stat().st_size,
            "stages": list(reversed(stages(run))),
            "data": {"file": Path(data).name, "row_length": about["row_length"]},
            **measure(exact, stored, rows, count),
        }
        _share_tokenizer(folder / TOKENIZER, target / TOKENIZER)
        write_json(folder / MEASURED, facts)
        (folder / CARD).write_text(card(facts), encoding="utf-8")
    return target / name


def _shape(model: Model) -> list[str]:
    own = {"bd3lm": ["block_size"], "dadlm": ["block_size", "candidates", "expand_at", "transition"]}
    return ["layers", "width", "heads", "context", "vocab_size", *own.get(model.config.family, [])]


def stages(run: Path) -> list[dict[str, Any]]:
    """What was trained to get here, the last stage first."""
    if run == PRETRAINED / run.name:
        return list(reversed(json.loads((run / MEASURED).read_text(encoding="utf-8"))["stages"]))
    if (run / CURVE).is_file() and not (run / "last" / "training").is_dir():
        stage, origin = _route(run)
    else:
        stage, origin = _stage(_progress(run))
    return [stage, *(stages(origin) if origin else [])]


def _route(run: Path) -> tuple[dict[str, Any], Path | None]:
    """Of a run of research.routes."""
    facts = json.loads((run / CURVE).read_text(encoding="utf-8"))
    keys = ("family", "steps", "tokens_per_step", "lr", "ema", "seed", "text")
    origin = facts["after"] and (shipped(facts["after"]) or run.parent / facts["after"])
    return {key: facts[key] for key in keys}, origin


def _stage(progress: dict[str, Any]) -> tuple[dict[str, Any], Path | None]:
    settings = progress["run"]
    stage = {
        "family": settings["model"]["family"],
        "steps": progress["step"],
        "tokens_per_step": settings["train"]["batch_size"] * settings["model"]["context"],
        "lr": settings["train"]["lr"],
        "ema": settings["train"]["ema"],
        "seed": settings["train"]["seed"],
        "text": Path(settings["data"]["train"]).name,
    }
    return stage, Path(settings["init_from"]) if settings["init_from"] else None


def _progress(run: Path) -> dict[str, Any]:
    for folder in (run, run / "best", run / "last"):
        if (folder / "training" / "state.json").is_file():
            return read_progress(folder)
    raise CheckpointError(f"{run} has no training/state.json: the card must say how the model was trained")


def measure(exact: Model, stored: Model, rows: Rows, count: int) -> dict[str, Any]:
    """Reconstruction (not for AR) and perplexity before and after, on the same rows and masks."""
    both = [perplexity(model, rows, count=count) for model in (exact, stored)]
    numbers: dict[str, Any] = {
        "rows": both[0]["count"],
        "is_bound": both[0]["is_bound"],
        "nll": [one["nll"]["mean"] for one in both],
        "perplexity": [one["perplexity"]["mean"] for one in both],
    }
    if exact.config.family != "ar":
        pair = reconstruction(stored, rows, against=exact, count=count)
        numbers["reconstruction"] = [pair["against_value"], pair["value"]]
        numbers["reconstruction_difference"] = pair["difference"]
    return numbers


def _share_tokenizer(own: Path, shared: Path) -> None:
    """Keep one compact tokenizer for all models; they are compared, so theirs must be the same."""
    text = json.dumps(json.loads(own.read_text("utf-8")), ensure_ascii=False, separators=(",", ":"))
    if shared.exists() and shared.read_text("utf-8") != text:
        raise CheckpointError(
            f"{shared} is another tokenizer than that of this model; remove it to start anew"
        )
    shared.write_text(text, encoding="utf-8")
    own.unlink()


def card(facts: dict[str, Any]) -> str:
    """The model card, in the form that Hugging Face reads, of any kind of shipped model."""
    kinds = {"edges": _edges_card, "tour": _tour_card, None: _trained_card}
    return kinds[facts.get("kind")](facts)


def _template(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _edges_card(facts: dict[str, Any]) -> str:
    rows = [
        [name, "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**nats)]
        for name, nats in facts["one_pass"].items()
    ]
    first, second = facts["orders"]["first"], facts["orders"].get("second")
    origin, source = "They were counted from text", "./bd3lm-e128"
    commands = [
        f"dadlm edges count wiki.jsonl --model bd3lm --rank {first['rank']} --second-rank 0 --out bd3lm-e128"
    ]
    if trained := first["training"]:
        origin += ", then trained beside `{beside}` for {steps:,} steps of {tokens_per_step:,} tokens"
        origin, source = origin.format(**trained), f"runs/routes/longer-{trained['beside']}-edges"
        commands.append(f"python -m research.routes run {Path(source).name} --train SHARDS --valid SHARDS")
    about, pairs = "a token is scored given its left neighbour too", f"{first['pairs']:,} pairs of neighbours"
    if second:
        about = "a token is scored given its left neighbour too, and given the token before that one"
        origin += f"; those of second order (rank {second['rank']}) were counted alone"
        pairs += f" and {second['pairs']:,} pairs two places apart"
        more = f"--second-rank {second['rank']} --out bd3lm-second --json > count.json"
        commands.append(f"dadlm edges count wiki.jsonl --model {source} {more}")
        source = "./bd3lm-second"
    commands.append(
        f"python -m tools.ship_edges {source} --counted count.json --data {facts['data']['file']}"
    )
    texts = {"origin": origin, "commands": "\n".join(commands), "numbers": table(["", "nats a token"], rows)}
    texts |= {"about": about, "pairs": pairs, "rank": first["rank"], "tokens": first["tokens"]}
    return _template("card_edges.md").format(**facts, **facts["data"], **texts)


def _tour_card(facts: dict[str, Any]) -> str:
    kinds = {"float32, as trained": facts["float32"], "8 bits, as shipped": facts["stored"]}
    rows = [
        [
            f"valid blocks, {steps} step{'s' * (steps != '1')}",
            *(f"{one['valid'][steps]:.1%}" for one in kinds.values()),
        ]
        for steps in facts["stored"]["valid"]
    ]
    rows.append(["divergence", *(f"{one['divergence']:.3f}" for one in kinds.values())])
    return _template("card_tour.md").format(
        **facts, system=SYSTEMS[facts["family"]], numbers=table(["", *kinds], rows)
    )


def _trained_card(facts: dict[str, Any]) -> str:
    shape, sign = facts["shape"], "≤ " if facts["is_bound"] else ""
    blocks = f", blocks of {shape['block_size']}" if "block_size" in shape else ""
    blocks += f", {shape['candidates']} candidates" if "candidates" in shape else ""
    numbers = [
        ["perplexity", *(f"{sign}{value:.2f}" for value in facts["perplexity"])],
        ["nats per token", *(f"{sign}{value:.4f}" for value in facts["nll"])],
    ]
    loss = f"{facts['nll'][1] - facts['nll'][0]:+.5f} nats per token"
    if "reconstruction" in facts:
        values = [f"{value:.4f}" for value in facts["reconstruction"]]
        numbers.append(["conditional reconstruction, nats per token", *values])
        change = facts["reconstruction_difference"]
        loss += "; reconstruction {mean:+.5f}, 95% interval [{low:+.5f}, {high:+.5f}]".format(**change)
    return _template("card.md").format(
        **{key: facts[key] for key in ("name", "family", "parameters", "bytes", "rows")},
        **{key: shape[key] for key in ("layers", "width", "vocab_size", "context")},
        system=SYSTEMS[facts["family"]],
        blocks=blocks,
        training=_training(facts["stages"]),
        millions=sum(stage["steps"] * stage["tokens_per_step"] for stage in facts["stages"]) / 1e6,
        row_length=facts["data"]["row_length"],
        numbers=table(["", "float32, as trained", "8 bits, as shipped"], numbers),
        bound=BOUND if sign else "",
        loss=loss,
    )


def _training(stages: list[dict[str, Any]]) -> str:
    rows = [
        [
            stage["family"],
            f"{stage['steps']:,}",
            f"{stage['tokens_per_step']:,}",
            f"{stage['lr']:g}",
            str(stage["seed"]),
        ]
        for stage in stages
    ]
    return table(["stage", "steps", "tokens per step", "learning rate", "seed"], rows)


def renew_cards() -> None:
    for file in sorted(PRETRAINED.glob(f"*/{MEASURED}")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        file.with_name(CARD).write_text(card(facts), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a trained model one that ships with dadlm.")
    parser.add_argument("run", type=Path, nargs="?", help="folder of a training run; its best model is taken")
    parser.add_argument("name", choices=tuple(SYSTEMS), nargs="?")
    parser.add_argument("--data", help="text to measure on, not trained on")
    parser.add_argument("--rows", type=int, default=64, help="rows to measure on; minutes on a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cards", action="store_true", help="only write the cards anew")
    options = parser.parse_args()
    if options.cards:
        renew_cards()
        return
    if not (options.run and options.name and options.data):
        parser.error("say RUN NAME --data FILE")
    folder = ship(options.run, options.name, options.data, options.rows, options.device)
    print((folder / CARD).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
