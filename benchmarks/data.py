"""Speed and memory of preparing text, beside `datasets.map` on the same text and machine.

    python benchmarks/data.py --articles news.jsonl --work FOLDER --megabytes 1000 --out result.json

The text repeats the articles, with the sentences of each in a new order. Each contender is a process of its
own. Memory is the largest sum of the resident memory of that process and its children, sampled ten times a
second; pages they share are counted for each. Time is wall-clock time without imports.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil

OURS = """
import json, sys, time
from dadlm.tokens import Tokenizer, prepare
text, tokenizer, work, workers = sys.argv[1:]
tokenizer = Tokenizer.load(tokenizer)
begin = time.perf_counter()
shards = prepare(text, tokenizer, work, workers=int(workers), progress=False)
print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": shards.tokens}))
"""

MAP = """
import json, sys, time
import datasets
from dadlm.tokens import Tokenizer
text, tokenizer, work, workers = sys.argv[1:]
tokenizer = Tokenizer.load(tokenizer)
datasets.disable_progress_bars()

def encode(batch):
    return {"ids": [[*ids, tokenizer.eot_id] for ids in tokenizer.encode_batch(batch["text"])]}

begin = time.perf_counter()
data = datasets.load_dataset("json", data_files=text, split="train", cache_dir=work)
data = data.map(encode, batched=True, num_proc=int(workers), remove_columns=data.column_names)
seconds = time.perf_counter() - begin
tokens = sum(len(ids) for batch in data.iter(1000) for ids in batch["ids"])
print(json.dumps({"seconds": seconds, "tokens": tokens}))
"""


def make_text(articles: list[str], target: Path, size: int) -> int:
    """Write so many bytes of text as .jsonl; how many there are."""
    shuffle, written = random.Random(0), 0
    with target.open("w") as file:
        while written < size:
            for article in articles:
                sentences = article.split(". ")
                shuffle.shuffle(sentences)
                text = ". ".join(sentences)
                written += len(text.encode())
                file.write(json.dumps({"text": text}) + "\n")
                if written >= size:
                    break
    return written


def measure(program: str, text: Path, tokenizer: str, work: Path, workers: int) -> dict[str, float]:
    """Run a contender: what it prints, and the most memory it held."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(text), tokenizer, str(work), str(workers)],
        stdout=subprocess.PIPE,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    )
    family, most = psutil.Process(process.pid), 0
    while process.poll() is None:
        most = max(most, _resident(family))
        time.sleep(0.1)
    assert process.stdout is not None and process.returncode == 0
    return json.loads(process.stdout.read()) | {"peak_mb": most / 1e6}


def _resident(family: psutil.Process) -> int:
    total = 0
    try:
        for process in (family, *family.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:  # ended while we looked
        pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--articles", required=True, help=".jsonl with a field text")
    parser.add_argument("--work", required=True, type=Path, help="folder for text and shards")
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--megabytes", type=int, default=1000, help="text for us")
    parser.add_argument("--map-megabytes", type=int, default=100, help="text for datasets.map and us again")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    with open(options.articles) as file:
        articles = [json.loads(line)["text"] for line in file]
    options.work.mkdir(parents=True, exist_ok=True)
    plan = [("datasets.map", MAP, options.map_megabytes), ("dadlm", OURS, options.map_megabytes)]
    plan.append(("dadlm", OURS, options.megabytes))
    results = []
    for name, program, megabytes in plan:
        text = options.work / f"{megabytes}.jsonl"
        size = make_text(articles, text, megabytes * 1_000_000)
        load = os.getloadavg()[0]
        found = measure(
            program, text, options.tokenizer, options.work / f"{name}-{megabytes}", options.workers
        )
        speed = size / 1e6 / found["seconds"]
        results.append(
            {"name": name, "text_mb": size / 1e6, "workers": options.workers, "mb_per_second": speed}
            | found
            | {"load_before": load}
        )
        print(json.dumps(results[-1]), flush=True)
        options.out.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
