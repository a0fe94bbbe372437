"""Texts with and without edges, kept and compared: by tiny models, read by a reader that counts words."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.decode.tiny import tiny

from dadlm.model import save
from dadlm.tokens import prepare, word_level
from research import edge_mauve, edge_texts

WORDS = [f"w{number}" for number in range(28)]


class Reader:
    def score(self, texts: Sequence[str], prompts: Sequence[str]) -> Any:
        counts = [Counter(text.split()) for text in texts]
        return SimpleNamespace(features=np.array([[one[word] for word in WORDS] for one in counts], float))


def test_every_kept_text_has_its_mauve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS * 400), encoding="utf-8")
    valid = str(prepare(str(tmp_path / "text.txt"), word_level(WORDS), tmp_path / "cache").folder)
    for family in ("ar", "dadlm"):
        save(tiny(family, context=32, tokenizer=word_level(WORDS)), tmp_path / family)
    for module in (edge_texts, edge_mauve):
        for name, value in (("PROMPT", 8), ("NEW", 12)):
            monkeypatch.setattr(module, name, value)
    models = ["--models", str(tmp_path / "dadlm"), f"{tmp_path / 'dadlm'}@position"]
    ways = ["--steps", "2", "--entropy", "8", "--texts", "10", "--judge", str(tmp_path / "ar")]
    files = ["--keep", str(tmp_path / "kept"), "--out", str(tmp_path / "texts.json")]
    monkeypatch.setattr(sys, "argv", ["texts", *models, *ways, *files, "--valid", valid])
    edge_texts.main()
    rows = json.loads((tmp_path / "texts.json").read_text(encoding="utf-8"))
    assert [(row["nucleus"], row.get("steps"), row.get("bound")) for row in rows] == [
        *(("standard", 2, None), ("standard", None, 8.0), ("position", 2, None), ("position", None, 8.0))
    ]
    monkeypatch.setattr(edge_mauve, "load", lambda _: SimpleNamespace(tokenizer=word_level(WORDS)))
    monkeypatch.setattr(edge_mauve, "open_language_model", lambda *_: Reader())
    monkeypatch.setattr(edge_mauve, "mauve", lambda p, q: {"mean": len(q), "low": 0.0, "high": 1.0})
    out = tmp_path / "mauve.json"
    monkeypatch.setattr(sys, "argv", ["mauve", str(tmp_path / "kept"), "--valid", valid, "--out", str(out)])
    edge_mauve.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [(row["model"], row["nucleus"], row.get("steps"), row.get("way")) for row in found] == [
        *(("dadlm", "position", 2, None), ("dadlm", "position", None, "entropy 8.0")),
        *(("dadlm", "standard", 2, None), ("dadlm", "standard", None, "entropy 8.0")),
    ]
    assert all(row["mauve"]["mean"] == 10 for row in found)
