"""Other people's model files, checked before a library builds anything from them.

Every number is bounded, a header may not claim more than its file holds, and a configuration may not describe
a network that is larger than its weights. Nothing here runs code of a model folder.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from dadlm.errors import CheckpointError
from dadlm.model.files import read_shapes

_LARGEST_JSON = 4 << 20  # bytes; configurations that list thousands of labels have one
_DEEPEST = 32
_LARGEST = 1 << 24  # integer; the longest contexts have 10 million positions
_MOST_LAYERS = 4096
_LAYERS = ("layer", "layers", "blocks", "block_count", "depth", "depths")  # endings of their names
_BASES = ("theta", "base")  # of rotary positions: large, but no sizes
_MOST_ENTRIES = 100_000  # of a GGUF header: keys, tensors
_GGUF_SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}
_GGUF_STRING, _GGUF_ARRAY = 8, 9


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of bounded size and depth with bounded numbers, or an error that names the file."""
    try:
        if (size := file.stat().st_size) > _LARGEST_JSON:
            raise ValueError(f"{size:,} bytes, more than {_LARGEST_JSON:,}")
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse_constant)
        check_numbers(content)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is not a JSON object")
    return content


def check_numbers(value: Any, name: str = "", depth: int = 0) -> None:
    """Refuse numbers that no model has: building one of them would take all memory or never end."""
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels of nesting")
    if isinstance(value, dict):
        for key, inner in value.items():
            check_numbers(inner, str(key), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_numbers(inner, name, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, expected a finite number")
    elif isinstance(value, int) and not name.endswith(_BASES):
        most = _MOST_LAYERS if name.endswith(_LAYERS) else _LARGEST
        if abs(value) > most:
            raise ValueError(f"{name} is {str(value)[:20]}, expected at most {most:,}")


def refuse_constant(name: str) -> NoReturn:
    """NaN and Infinity, which Python's parser takes."""
    raise ValueError(f"{name} is not JSON")


def check_stored(described: int, folder: Path) -> None:
    """Refuse a configuration that describes more numbers than its weights can be."""
    shapes = [shape for file in folder.glob("*.safetensors") for _, shape in read_shapes(file).values()]
    # In .bin files every number takes at least a byte.
    stored = sum(map(math.prod, shapes)) or sum(file.stat().st_size for file in folder.glob("*.bin"))
    if described > 2 * stored:  # a head may be the embedding, stored once
        raise CheckpointError(
            f"the configuration of {folder} describes a network of {described:,} numbers, its weights hold "
            f"{stored:,}: they do not belong together; get the model again"
        )


def check_gguf(file: Path) -> None:
    """Refuse a header that claims more than the file holds, or numbers that its tensors do not have."""
    try:
        with file.open("rb") as handle:
            fields, tensors = _read_gguf(handle, file.stat().st_size)
        check_numbers({k: v for k, v in fields.items() if not k.startswith(("general.", "tokenizer."))})
        blocks = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
        sizes = {size for shape in tensors.values() for size in shape}
        for name, value in fields.items():
            if name.endswith(".block_count") and value != len(blocks):
                raise ValueError(f"{name} is {value}, and there are tensors of {len(blocks)} blocks")
            if name.endswith((".embedding_length", ".feed_forward_length")) and value not in sizes:
                raise ValueError(f"{name} is {value}, and no tensor has that size")
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise CheckpointError(f"{file} is no GGUF file that can be used ({error}); get it again") from error


def _read_gguf(handle: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Scalars and shapes of tensors, by name.

    By hand, because the gguf package believes every count: an array that claims 2^60 entries fills memory.
    """
    magic, version, tensor_count, field_count = _unpack(handle, "4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError("it does not begin like a GGUF file of version 2 or 3")
    if max(tensor_count, field_count) > _MOST_ENTRIES:
        raise ValueError(f"{max(tensor_count, field_count):,} entries, expected at most {_MOST_ENTRIES:,}")
    fields = {}
    for _ in range(field_count):
        name = _string(handle, size)
        fields[name] = _value(handle, size, *_unpack(handle, "I"))
    tensors = {}
    for _ in range(tensor_count):
        name, (rank,) = _string(handle, size), _unpack(handle, "I")
        if rank > 4:
            raise ValueError(f"{name} has {rank} dimensions")
        *shape, _, _ = _unpack(handle, f"{rank}QIQ")  # then type and offset
        if math.prod(shape) > 8 * size:  # one bit a number at least
            raise ValueError(f"{name} {shape} is larger than the file")
        tensors[name] = shape
    return fields, tensors


def _value(handle: BinaryIO, size: int, kind: int) -> Any:
    """A scalar or a text; arrays are only checked to fit in the file."""
    if kind == _GGUF_STRING:
        return _string(handle, size)
    if kind != _GGUF_ARRAY:
        return _unpack(handle, _GGUF_SCALARS[kind])[0]
    inner, count = _unpack(handle, "IQ")
    if count > size - handle.tell() or inner == _GGUF_ARRAY:
        raise ValueError(f"an array of {count:,} entries in a file of {size:,} bytes")
    if inner == _GGUF_STRING:
        return [_string(handle, size) for _ in range(count)][:0]
    handle.seek(count * struct.calcsize(f"<{_GGUF_SCALARS[inner]}"), 1)
    return []


def _string(handle: BinaryIO, size: int) -> str:
    (length,) = _unpack(handle, "Q")
    if length > size - handle.tell():
        raise ValueError(f"a text of {length:,} bytes in a file of {size:,}")
    return handle.read(length).decode("utf-8", "replace")


def _unpack(handle: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", handle.read(struct.calcsize(f"<{form}")))
