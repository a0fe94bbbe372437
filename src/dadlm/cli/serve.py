"""dadlm serve: models behind an OpenAI-compatible HTTP API, and the playground page."""

import json
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from dadlm.cli.options import DeviceOptions, parse
from dadlm.decode.pair import usual_draft
from dadlm.errors import ConfigError
from dadlm.model import find_device, load
from dadlm.model.pretrained import NAMES
from dadlm.serve.settings import ServeSettings


@dataclass(frozen=True)
class Options(DeviceOptions):
    model: tuple[str, ...] = NAMES
    """Models to serve: names of shipped models, folders,
    Hugging Face names, or NAME=FOLDER to choose the name.
    The first one is the default for requests."""
    draft: str = ""
    """Which of these models drafts for the AR models among them in mode lossless.
    Empty: bd3lm-edges if the shipped ar is served with it,
    otherwise lookup (copies from earlier in the text)."""
    api_key_file: Path | None = None
    """File with the API key that clients must send. None: the
    environment variable DADLM_API_KEY; if unset, no key."""
    replicas: int = 1
    """Copies of the server behind one address, on Ray Serve."""
    settings: Annotated[ServeSettings, tyro.conf.arg(name="")] = field(default_factory=ServeSettings)


def run(words: list[str]) -> int:
    options = parse(Options, words, "serve")
    sources, key, settings = _sources(options.model), _read_key(options.api_key_file), options.settings
    if options.draft and options.draft not in sources:
        raise ConfigError(f"--draft {options.draft}: not among the models served ({', '.join(sources)})")
    if options.replicas < 1:
        raise ConfigError(f"replicas must be at least 1, got {options.replicas}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if not settings.loopback and key is None:
        print(f"warning: others can reach {settings.host}, and no API key is set", file=sys.stderr)
    _serve(options, sources, key)
    return 0


def _serve(options: Options, sources: dict[str, str], key: str | None) -> None:
    try:
        from dadlm.serve.app import create_app
        from dadlm.serve.server import Server, open_socket
        from dadlm.serve.service import Service
    except ImportError as error:
        raise ConfigError("dadlm serve needs more packages: pip install 'dadlm[serve]'") from error
    settings, device, begin = options.settings, find_device(options.device), time.monotonic()

    def build() -> tuple[Any, Service]:
        models = {}
        for number, (name, source) in enumerate(sources.items(), 1):
            print(f"loading {name} on {device} ({number} of {len(sources)})", file=sys.stderr, flush=True)
            models[name] = load(source, device, options.dtype)
        usual = usual_draft(sources.get("ar"))
        draft = options.draft or (usual if usual and sources.get(usual) == usual else None)
        service = Service(models, settings, draft=draft)
        return create_app(service, key), service

    def announce(port: int) -> None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url, names = f"http://{host}:{port}/", list(sources)
        lines = [
            f"ready after {time.monotonic() - begin:.1f} s; Ctrl-C ends",
            f"playground    {url}",
            f"OpenAI's API  {url}v1 (models: {', '.join(names)})",
            f"its docs      {url}docs",
        ]
        about = json.dumps({"url": url, "models": names})
        print(about if options.json else "\n".join(lines), flush=True)

    if options.replicas > 1:
        from dadlm.serve.replicas import serve_replicas

        on_gpu = device.type == "cuda"
        return serve_replicas(lambda: build()[0], settings, options.replicas, on_gpu, announce)
    with open_socket(settings) as opened:
        app, service = build()
        Server(app, service, lambda: announce(opened.getsockname()[1])).run(sockets=[opened])


def _sources(given: tuple[str, ...]) -> dict[str, str]:
    """Name → folder; a folder given without a name is called by its own."""
    sources: dict[str, str] = {}
    for one in given:
        name, equals, source = one.partition("=")
        if Path(one).is_dir():  # its path may contain =; links such as RUN/best keep their own name
            name, source = os.path.basename(os.path.abspath(one)), one
        elif not equals:
            name = source = one
        if not name or not source or name in sources:
            raise ConfigError(f"model {one!r}: give each model a name of its own, NAME=FOLDER")
        sources[name] = source
    return sources


def _read_key(file: Path | None) -> str | None:
    """From a file or the environment: other users can see the command line."""
    key = os.environ.get("DADLM_API_KEY") if file is None else file.read_text("utf-8", "replace")
    if key is None:
        return None
    key = key.strip()  # clients' keys are stripped too
    if not key.isascii() or not key.isprintable() or len(key) < 8:
        raise ConfigError("an API key needs at least 8 characters, all printable ASCII")
    return key
