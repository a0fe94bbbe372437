"""Text that is given out while it grows: no half characters, no stop texts."""

from functools import cache

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dadlm.tokens import Tokenizer
from dadlm.tokens.growing_text import TextStream
from dadlm.tokens.vocabularies import train_bpe, word_level

BYTES: Tokenizer = train_bpe(["ab ab"], 258, show_progress=False)


def pieces_of(tokenizer: Tokenizer, blocks: list[list[int]], stop: tuple[str, ...] = ()) -> list[str]:
    """As the server would give them."""
    text_stream, given = TextStream(tokenizer, stop), []
    for block in blocks:
        text, used = text_stream.add(block)
        given.append(text)
        if used is not None:
            break
    return [*given, text_stream.end()[0]]


def test_half_a_character_waits_for_the_other_half():
    ids = BYTES.encode("a🙂b")
    assert len(ids) == 6
    assert pieces_of(BYTES, [[id_] for id_ in ids]) == ["a", "", "", "", "🙂", "b", ""]
    assert pieces_of(BYTES, [ids[:3], ids[3:]]) == ["a", "🙂b", ""]
    assert "".join(pieces_of(BYTES, [ids[:3]])) == BYTES.decode(ids[:3]), "there is no other half"


@given(blocks=st.lists(st.lists(st.integers(0, 256), max_size=5), max_size=60))
@settings(max_examples=100)
def test_pieces_of_any_bytes_joined_are_the_whole_text(blocks: list[list[int]]):
    assert "".join(pieces_of(BYTES, blocks)) == BYTES.decode([id_ for block in blocks for id_ in block])


@cache
def byte_fallback() -> Tokenizer:
    """As Llama 2's: characters that are no tokens become bytes, whose decoder wants all of a run or none."""
    names = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({name: id_ for id_, name in enumerate(names)}, [], byte_fallback=True)
    )
    inner.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    inner.add_special_tokens(["</s>"])
    return Tokenizer(inner)


@given(text=st.text("ab€🙂日本語", max_size=120), size=st.integers(1, 20))
@example(text="a" + "🙂" * 60, size=16)  # every block ends inside a character
@settings(max_examples=200)
def test_pieces_of_a_tokenizer_with_byte_fallback_are_the_whole_text(text: str, size: int):
    ids = byte_fallback().encode(text)
    blocks = [ids[i : i + size] for i in range(0, len(ids), size)]
    assert "".join(pieces_of(byte_fallback(), blocks)) == text


def test_nothing_follows_a_stop_text_not_even_half_a_character():
    pairs = train_bpe(["\u2009" * 50 + " 🙂" * 200], 300, show_progress=False)
    half = next(id_ for id_ in range(257, pairs.vocab_size) if pairs.decode([id_]).startswith(" \ufffd"))
    assert "".join(pieces_of(pairs, [[*pairs.encode("a"), half]], (" ",))) == "a"


def test_words_are_joined_as_the_tokenizer_joins_them():
    words = word_level(["one", "two", "three"])
    ids = words.encode("one two three " * 60)
    assert "".join(pieces_of(words, [ids[i : i + 7] for i in range(0, len(ids), 7)])) == words.decode(ids)


def test_what_may_become_a_stop_text_waits():
    blocks = [BYTES.encode(text) for text in ("one EN", "E END", "X")]
    assert pieces_of(BYTES, blocks, ("END",)) == ["one ", "ENE ", ""]
    assert pieces_of(BYTES, blocks, ("ENDY",)) == ["one ", "ENE ", "ENDX", ""]


@pytest.mark.parametrize("text, given", [("cac", "c"), ("cab", ""), ("ccab", "c"), ("ccb", "ccb")])
def test_a_stop_text_inside_the_beginning_of_another_waits_for_it(text: str, given: str):
    assert "".join(pieces_of(BYTES, [[id_] for id_ in BYTES.encode(text)], ("cab", "a"))) == given


@given(
    text=st.text("abc", min_size=10, max_size=30),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
@settings(max_examples=200)
def test_the_stop_text_that_begins_first_ends_the_text_wherever_blocks_end(
    text: str, stop: list[str], sizes: list[int]
):
    ids, blocks = BYTES.encode(text), []
    for size in sizes:
        blocks.append(ids[:size])
        ids = ids[size:]
    end = min((text.find(s) for s in stop if s in text), default=len(text))
    assert "".join(pieces_of(BYTES, blocks, tuple(stop))) == text[:end]
