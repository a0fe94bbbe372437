"""A server under load: N streaming clients for S seconds, every answer compared with its solo run.

Starts `dadlm serve` as a process of its own. The clients cycle through a fixed set of requests, whose answers
are made first, one at a time, with `dadlm.generate` and the server's default settings. That is also the
throughput to beat, measured again just before and after every load, so that other work slows both alike.

    python benchmarks/serving.py --model dadlm --clients 1 8 64 --seconds 60 --out result.json
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import dadlm
from dadlm.bench.machine import Machine
from dadlm.decode import settings_for

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


@dataclass
class Solo:
    """Answers made one at a time."""

    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def run(self, model: dadlm.Model, asked: list[dict]) -> "Solo":
        begin, cpu = time.perf_counter(), time.process_time()
        for one in asked:
            # The server's defaults, not those of `generate`.
            settings = settings_for(model.config, {"max_new_tokens": one["max_tokens"]})
            out = dadlm.generate(model, one["prompt"], seed=one["seed"], settings=settings)
            self.texts += out.texts
            self.tokens += len(out.tokens[0])
        self.seconds += time.perf_counter() - begin
        self.cpu_seconds += time.process_time() - cpu
        return self


def cpu_seconds(pid: int) -> float:
    """Of another process, since it began (Linux)."""
    facts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, facts[11:13])) / os.sysconf("SC_CLK_TCK")


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
    begin, text, first, chunk = time.monotonic(), "", None, {}
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
    if not total:
        raise SystemExit(f"no request was answered: {seen[0].errors[:1]}")
    return {
        "clients": clients,
        "seconds": round(taken, 2),
        "requests": len(total),
        "requests_per_second": round(len(total) / taken, 3),
        "tokens": sum(one.tokens for one in seen),
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


def compared(server: "Server", model: dadlm.Model, clients: int, seconds: float, asked, want) -> dict:
    """A load between two measurements of one text at a time."""
    some = asked[:6]
    alone = Solo().run(model, some)
    before = cpu_seconds(server.pid)
    result = load(server.port, clients, seconds, asked, want)
    used = cpu_seconds(server.pid) - before
    alone.run(model, some)
    per_second, per_cpu = alone.tokens / alone.seconds, alone.tokens / alone.cpu_seconds
    return result | {
        "tokens_per_cpu_second": round(result["tokens"] / used, 1),
        "alone_tokens_per_second": round(per_second, 1),
        "alone_tokens_per_cpu_second": round(per_cpu, 1),
        "times_alone": round(result["tokens_per_second"] / per_second, 2),
        "times_alone_per_cpu": round(result["tokens"] / used / per_cpu, 2),
    }


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Server(NamedTuple):
    port: int
    pid: int


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[Server]:
    """A server process."""
    words = ["serve", "--model", options.model, "--port", "0", "--json", "--max-rows", str(options.max_rows)]
    words += ["--device", options.device, "--dtype", options.dtype]
    command = [sys.executable, "-m", "dadlm.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        assert started.stdout is not None
        try:
            url = json.loads(started.stdout.readline())["url"]
            yield Server(int(url.rsplit(":", 1)[1].strip("/")), started.pid)
        finally:
            started.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="dadlm", help="folder or name of a model")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--max-rows", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = dadlm.load(options.model, options.device, options.dtype)
    asked = questions(options.questions, options.tokens)
    Solo().run(model, asked[:2])  # warm up
    want = Solo().run(model, asked).texts
    device, dtype = model.device, model.backbone.embedding.weight.dtype
    result = {
        "machine": Machine(device, dtype).describe(),
        "model": options.model,
        "family": model.config.family,
        "questions": {"count": len(asked), "tokens": options.tokens},
        "load": [],
    }
    with serving(options) as server:
        load(server.port, 2, 1, asked, want)  # warm up
        for clients in options.clients:
            result["load"].append(compared(server, model, clients, options.seconds, asked, want))
            print(json.dumps(result["load"][-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
