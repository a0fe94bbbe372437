"""Lossless texts beside the target's: where they part, and that a run which was stopped goes on."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.decode.tiny import tiny

from dadlm.model import save
from dadlm.tokens.vocabularies import word_level
from research import lossless

WORDS = [f"w{number}" for number in range(28)]


def test_where_texts_part() -> None:
    model = tiny("ar", context=32)
    truth = lossless.ModeAr("tiny", model, 8)
    prompt = [1, 2, 3]
    [text] = truth.texts([prompt])
    assert lossless.parting(truth, prompt, text, text) is None
    logits = truth.logits(prompt + text[:2]).detach()
    first, second, third = logits.topk(3).indices.tolist()
    assert text[2] == first, "it is greedy"
    for other, near in ((second, True), (third, False)):
        found = lossless.parting(truth, prompt, text, [*text[:2], other, *text[3:]])
        assert found is not None and (found["place"], found["between_the_best_two"]) == (2, near)
        assert found["difference_of_logits"] == pytest.approx(float(logits[first] - logits[second]))
    found = lossless.parting(truth, prompt, text, text[:5])  # one goes on where the other ends
    assert found is not None and (found["place"], found["between_the_best_two"]) == (5, False)


def test_what_transformers_pads_is_left_out() -> None:
    truth = object.__new__(lossless.Transformers)
    truth.ends = (0, 2)
    assert [truth._up_to_end(ids) for ids in ([5, 2, 0, 0], [5, 0, 0], [5, 6])] == [[5, 2], [5, 0], [5, 6]]


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS[at * at % 27] for at in range(1200)))
    torch.manual_seed(0)
    save(tiny("ar", tokenizer=word_level(WORDS), context=32), tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lossless, "RESULTS", tmp_path)
    words = "lossless text.txt --model tiny --draft lookup --prompts 6 --prompt-tokens 8 --tokens 12 --tree 4"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--batch-size", "2"])
    whole, calls = lossless.ModeAr.texts, list[int]()

    def texts(self: lossless.ModeAr, prompts: list[list[int]]) -> list[list[int]]:
        calls.append(len(prompts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, prompts)

    monkeypatch.setattr(lossless.ModeAr, "texts", texts)
    with pytest.raises(KeyboardInterrupt):
        lossless.main()
    assert json.loads((tmp_path / "greedy-tiny.json").read_text())["prompts"] == 2
    lossless.main()
    lossless.main()
    result = json.loads((tmp_path / "greedy-tiny.json").read_text())
    assert calls == [2, 2, 2, 2] and (result["prompts"], result["equal"], result["parted"]) == (6, 6, [])
    assert result["tokens_per_cycle"] > 1
