"""A server under load: N streaming clients for S seconds, every answer compared with its solo run.

Starts `dadlm serve` as a process of its own. The clients go round a fixed set of requests, whose answers are
first made one at a time with `dadlm.generate`; that is the throughput to beat, too.

    python benchmarks/serving.py --model FOLDER --clients 1 8 64 --seconds 60 --out result.json
    python benchmarks/serving.py --random lab-dadlm --tokenizer FOLDER    # random weights
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

import dadlm
from dadlm.bench.machine import describe_machine, measure_ceilings
from dadlm.recipes import recipe
from dadlm.tokens import Tokenizer

PROMPTS = ["The history of the town", "In physics,", "She was born in", "The river", "A computer is", "Music"]
PATIENCE = 600.0  # seconds without an answer that count as an error


@dataclass
class Seen:
    """What one client saw."""

    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    different: int = 0


def questions(count: int, tokens: int) -> list[dict]:
    """Different prompts, seeds and lengths, so that rows join and leave at different times."""
    return [
        {"prompt": PROMPTS[i % len(PROMPTS)], "seed": i, "max_tokens": max(1, tokens - 16 * (i % 3))}
        for i in range(count)
    ]


def solo(model: dadlm.Model, asked: list[dict]) -> tuple[list[str], float]:
    """The answers one at a time, and their tokens per second."""
    begin, texts, tokens = time.perf_counter(), [], 0
    for one in asked:
        out = dadlm.generate(model, one["prompt"], seed=one["seed"], max_new_tokens=one["max_tokens"])
        texts += out.texts
        tokens += len(out.tokens[0])
    return texts, tokens / (time.perf_counter() - begin)


def client(port: int, number: int, asked: list[dict], want: list[str], until: float, seen: Seen) -> None:
    turn = number
    while time.monotonic() < until:
        which = turn % len(asked)
        turn += 1
        try:
            text = ask(port, asked[which], seen)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            seen.errors.append(repr(error))
        else:
            seen.different += text != want[which]


def ask(port: int, fields: dict, seen: Seen) -> str:
    """One streamed text; its times and tokens are noted."""
    begin, text, first = time.monotonic(), "", None
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        body = json.dumps(fields | {"stream": True})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {answer.read()[:200]!r}")
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            first = time.monotonic() - begin if first is None else first
            chunk = json.loads(line[6:])
            text += chunk["choices"][0]["text"]
    seen.tokens += chunk["usage"]["completion_tokens"]  # a stream that broke off has none: an error
    seen.first.append(first or 0.0)
    seen.total.append(time.monotonic() - begin)
    return text


def load(port: int, clients: int, seconds: float, asked: list[dict], want: list[str]) -> dict:
    begin = time.monotonic()
    seen = [Seen() for _ in range(clients)]
    threads = [
        threading.Thread(target=client, args=(port, i, asked, want, begin + seconds, one))
        for i, one in enumerate(seen)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.monotonic() - begin  # to the last answer
    first, total = ([t for one in seen for t in getattr(one, name)] for name in ("first", "total"))
    return {
        "clients": clients,
        "seconds": round(taken, 2),
        "requests": len(total),
        "requests_per_second": round(len(total) / taken, 3),
        "tokens_per_second": round(sum(one.tokens for one in seen) / taken, 1),
        "first_block_p50": round(statistics.median(first), 3),
        "first_block_p99": round(quantile(first, 0.99), 3),
        "total_p50": round(statistics.median(total), 3),
        "total_p99": round(quantile(total, 0.99), 3),
        "fewest_answers_of_a_client": min(len(one.total) for one in seen),
        "errors": [error for one in seen for error in one.errors][:5],
        "error_count": sum(len(one.errors) for one in seen),
        "different_from_solo": sum(one.different for one in seen),
    }


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@contextmanager
def server(folder: str, options: argparse.Namespace):
    """The port of a server process."""
    words = ["serve", "--model", folder, "--port", "0", "--json", "--max-rows", str(options.max_rows)]
    words += ["--device", options.device, "--dtype", options.dtype]
    command = [sys.executable, "-m", "dadlm.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        assert started.stdout is not None
        try:
            yield int(json.loads(started.stdout.readline())["url"].rsplit(":", 1)[1].strip("/"))
        finally:
            started.terminate()


def random_model(options: argparse.Namespace, folder: Path) -> str:
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(options.tokenizer)
    config = recipe(options.random).model
    vocabulary = {"vocab_size": tokenizer.vocab_size + 1, "eot_id": tokenizer.eot_id}
    dadlm.save(dadlm.Model(type(config)(**vars(config) | vocabulary), tokenizer), folder / options.random)
    return str(folder / options.random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="folder or name of a model")
    parser.add_argument("--random", help="recipe whose shape a model with random weights gets")
    parser.add_argument("--tokenizer", help="folder of the tokenizer for --random")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--max-rows", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        source = options.model or random_model(options, Path(temporary))
        model = dadlm.load(source, options.device, options.dtype)
        asked = questions(options.questions, options.tokens)
        solo(model, asked[:2])  # warm up
        want, alone = solo(model, asked)
        device, dtype = model.device, model.backbone.embedding.weight.dtype
        result = {
            "machine": describe_machine(device, dtype, measure_ceilings(device, dtype)),
            "model": options.model or f"random weights of {options.random}",
            "family": model.config.family,
            "questions": {"count": len(asked), "tokens": options.tokens},
            "solo_tokens_per_second": round(alone, 1),
            "load": [],
        }
        del model
        with server(source, options) as port:
            load(port, 2, 1, asked, want)  # warm up
            for clients in options.clients:
                result["load"].append(load(port, clients, options.seconds, asked, want))
                print(json.dumps(result["load"][-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"one at a time: {alone:.1f} tokens/s")


if __name__ == "__main__":
    main()
