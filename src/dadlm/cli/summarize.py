"""dadlm summarize: documents → summaries, by a model that was fine-tuned for it."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import track
from rich.text import Text

from dadlm.cli.options import DeviceOptions, cost_line, numbers_last, open_model, parse, show
from dadlm.decode import DecodeSettings, generate
from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.documents import lines_of, object_of, text_of
from dadlm.evaluate.summarisation import prompt_of, summary_settings
from dadlm.model import Model, in_mode
from dadlm.model.files import whole_file
from dadlm.tokens.readers import check_regular
from dadlm.train.finetune import learned_lengths, lengths_as_learned

_STDIN, _LINES = "-", (".jsonl", ".jsonl.zst")


@dataclass(frozen=True, kw_only=True)
class Options(DeviceOptions):
    files: tyro.conf.Positional[tuple[str, ...]] = ()
    """Text files with one document each, or .jsonl files (also
    .zst) with a "document" (or "prompt") in each line.
    - or none: standard input, one document."""
    model: str = ""
    """A model fine-tuned on summaries: its folder, or that of its run (`dadlm finetune`)."""
    mode: Literal["diffusion", "ar"] = "diffusion"
    """ar: token by token, for models with `causal_context`."""
    document_tokens: int | None = None
    """Tokens of a document that are read, including the end-of-text after it.
    None: as in fine-tuning, otherwise 3/4 of the context."""
    summary_tokens: int | None = None
    """Maximum number of tokens of a summary. None: as in fine-tuning, otherwise the rest of the context."""
    paper: bool = False
    """Decode as in the paper: DA-DLM along the best path of a
    block, with end-of-text treated like any other token.
    Such summaries are short."""
    threshold: float = 0.9
    """Minimum confidence at which diffusion models keep a token; AR decodes greedily."""
    infill: tuple[int, float] | None = None
    """k r: fill gaps of at most k tokens once a share r of the block is known; faster."""
    batch_size: int = 8
    """Documents decoded at once; affects speed, not summaries."""
    strict: bool = False
    """Stop at the first document that cannot be read, instead of skipping it."""
    pairs: str | None = None
    """Write documents and summaries to this .jsonl file instead,
    one pair per line, as training data for `dadlm finetune`.
    Empty and truncated summaries are left out."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"--batch-size must be at least 1, got {self.batch_size}")


def run(words: list[str]) -> int:
    options = parse(Options, numbers_last(words, {"--infill": 2}), "summarize")
    if not options.model:
        raise ConfigError(
            "no model: pass --model FOLDER, one that was fine-tuned on summaries (dadlm finetune makes it)"
        )
    if options.pairs is not None:  # now, not when all is summarised
        _check_pairs(Path(options.pairs), options)
    documents, skipped = _read(options)
    model = in_mode(open_model(options.model, options.device, options.dtype), options.mode)
    learned = learned_lengths(options.model)
    if learned is None:
        reason = "was never fine-tuned on summaries (dadlm finetune does that): expect no summary of it"
        print(f"note: {options.model} {reason}", file=sys.stderr)
    sizes = lengths_as_learned(model, learned, options.document_tokens, options.summary_tokens)
    chosen = {"paper": options.paper, "threshold": options.threshold, "infill": options.infill}
    how = replace(summary_settings(model.config.family, **chosen), max_new_tokens=sizes[1])
    written, size, console = [], options.batch_size, Console(stderr=True)
    batches = [documents[first : first + size] for first in range(0, len(documents), size)]
    quiet = options.json or not console.is_terminal
    for batch in track(batches, "summarising", console=console, transient=True, disable=quiet):
        written += _write(model, batch, how, sizes[0])
        if not options.json and not options.pairs:
            _show(written[-len(batch) :], alone=len(documents) == 1)
    if options.pairs:
        _save_pairs(Path(options.pairs), documents, written)
    if options.json:
        print(json.dumps({"summaries": written, "skipped": skipped}, ensure_ascii=False))
    else:
        _report(written, skipped, sizes[0])
    return 0


def _check_pairs(target: Path, options: Options) -> None:
    if options.json:
        raise ConfigError("give --json or --pairs, not both")
    if target.suffix != ".jsonl" or (target.exists() and not target.is_file()):
        raise ConfigError(f"--pairs needs the name of a .jsonl file, got {str(target)!r}")
    if target.resolve() in [Path(file).resolve() for file in options.files]:
        raise ConfigError(f"--pairs {target} would replace what is read: name another file")


def _read(options: Options) -> tuple[list[tuple[str, str]], list[str]]:
    """(file, and line where there are several; text) of all documents, and what was wrong with the others."""
    documents: list[tuple[str, str]] = []
    skipped: list[str] = []
    for name in options.files or (_STDIN,):
        for source, content in _contents(name):
            try:
                documents.append((source, _text(content, source, name)))
            except DataError as error:
                if options.strict:
                    raise
                skipped.append(str(error))
    if not documents:
        names = " ".join(options.files or ("standard input",))
        raise DataError(f"{names}: no document to summarise" + (f"; {skipped[0]}" if skipped else ""))
    return documents, skipped


def _contents(name: str) -> Iterator[tuple[str, bytes]]:
    """What a file holds: itself, or its lines. Names are shown as far as they are UTF-8."""
    shown = name.encode(errors="surrogateescape").decode(errors="replace")
    if name == _STDIN:
        if sys.stdin.isatty():
            print("a document; Ctrl-D ends it", file=sys.stderr)
        yield "standard input", sys.stdin.buffer.read()
        return
    check_regular(Path(name))
    if name.endswith(_LINES):
        yield from ((f"{shown}, line {number}", line) for number, line in lines_of(Path(name)))
    else:
        yield shown, Path(name).read_bytes()


def _text(content: bytes, source: str, name: str) -> str:
    if name.endswith(_LINES):
        record = object_of(content, source)
        return text_of(record, "prompt" if "prompt" in record else "document", source)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: not UTF-8 ({error.reason} at byte {error.start})") from None
    if not text.strip():
        raise DataError(f"{source}: the document is empty")
    return text


def _write(
    model: Model, documents: list[tuple[str, str]], settings: DecodeSettings, document_tokens: int
) -> list[dict[str, Any]]:
    prompts = [prompt_of(model, text, document_tokens) for _, text in documents]
    # Nothing is drawn: one seed does for all.
    out = generate(model, [ids for ids, _ in prompts], seed=0, batch_size=len(documents), settings=settings)
    return [
        {
            "source": source,
            "summary": out.texts[row].strip(),
            "tokens": len(out.tokens[row]),
            "forward_passes": out.forward_passes[row],
            "truncated": prompts[row][1],
            "ended": out.tokens[row][-1] in model.end_ids,
        }
        for row, (source, _) in enumerate(documents)
    ]


def _show(written: list[dict[str, Any]], alone: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for piece in written:
        if not alone:
            console.print(Text(piece["source"], style="dim"))
        show(piece["summary"] + "\n" * (not alone), console)


def _save_pairs(file: Path, documents: list[tuple[str, str]], written: list[dict[str, Any]]) -> None:
    """As `dadlm finetune` reads them: whole summaries, since it learns where they end."""
    pairs = [
        {"document": text, "summary": piece["summary"]}
        for (_, text), piece in zip(documents, written, strict=True)
        if piece["summary"] and piece["ended"]
    ]
    if not pairs:
        raise DataError(f"all summaries are empty or were cut off: {file} is not written")
    with whole_file(file.resolve()) as handle:  # through a link, not over it
        handle.writelines((json.dumps(pair, ensure_ascii=False) + "\n").encode() for pair in pairs)
    left_out = len(written) - len(pairs)
    rest = f"; {left_out} summaries that are empty or were cut off are left out" if left_out else ""
    print(f"{len(pairs)} pairs in {file}{rest}", file=sys.stderr)


def _report(written: list[dict[str, Any]], skipped: list[str], document_tokens: int) -> None:
    """What it took and what was left out, beside the summaries: on standard error."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    tokens, passes = (sum(piece[name] for piece in written) for name in ("tokens", "forward_passes"))
    console.print(cost_line(tokens, passes))
    counts = {
        f"documents were cut to {document_tokens} tokens": sum(piece["truncated"] for piece in written),
        "summaries were cut off before their end": sum(not piece["ended"] for piece in written),
        "summaries are empty": sum(not piece["summary"] for piece in written),
    }
    for what, count in counts.items():
        if count:
            console.print(f"{count} of {len(written)} {what}")
    for line in skipped:
        console.print(f"left out: {line}")
