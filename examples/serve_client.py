"""Talk to `dadlm serve` with the client of OpenAI: whole, streamed, and with options of our decoder.

pip install 'dadlm[serve]' openai
python examples/serve_client.py                                   # starts a server of its own
python examples/serve_client.py --url http://127.0.0.1:8000/v1    # or uses one that runs
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from openai import OpenAI


@contextmanager
def server(model: str) -> Iterator[str]:
    """A server on a free port, until the block ends; gives its address."""
    words = [sys.executable, "-m", "dadlm.cli", "serve", "--model", model, "--port", "0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"] + "v1"  # its first line, when it is ready
    finally:
        process.terminate()
        process.wait()


def talk(url: str) -> None:
    client = OpenAI(base_url=url, api_key="none")  # the key of --api-key-file, if the server has one
    name = client.models.list().data[0].id
    asked = {"model": name, "prompt": "The city of", "max_tokens": 32, "seed": 1}

    whole = client.completions.create(**asked)
    print(f"{name}: {whole.choices[0].text!r}, {whole.usage.completion_tokens} tokens")

    print("streamed:", end="", flush=True)
    ours = {"sampler": "random", "steps": 4}  # every option of dadlm.generate goes into extra_body
    for chunk in client.completions.create(**asked, stream=True, extra_body=ours):
        print(chunk.choices[0].text, end="|", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="of a server that runs; default: start one")
    parser.add_argument("--model", default="dadlm", help="for the server that is started")
    options = parser.parse_args()
    if options.url:
        return talk(options.url)
    with server(options.model) as url:
        talk(url)


if __name__ == "__main__":
    main()
