"""dadlm data, and what training makes of mixtures and documents."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from tests.tokens.conftest import write_jsonl

from dadlm.cli import main
from dadlm.tokens import DocumentRows, Mixture, training_rows
from dadlm.train import DataConfig
from dadlm.train.data import load_rows, load_tokenizer


@pytest.fixture
def texts(tmp_path, prose, monkeypatch):
    """a.jsonl of many documents, b.txt of one."""
    monkeypatch.chdir(tmp_path)
    text = prose(40_000)
    documents = [text[at : at + 300] for at in range(0, 12_000, 300)]
    write_jsonl(tmp_path / "a.jsonl", documents)
    (tmp_path / "b.txt").write_text(text[20_000:])
    return documents


def said(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_prepare_and_verify_a_mixture(texts, capsys):
    words = ["data", "prepare", "0.7:a.jsonl,0.3:b.txt", "--tokenizer", "bpe:300", "--workers", "2", "--json"]
    assert main(words) == 0
    [made] = [told["sources"] for told in said(capsys)]
    assert [result["folder"].split("/")[-1][:2] for result in made] == ["a-", "b-"]
    for result in made:
        assert main(["data", "verify", result["folder"], "--json"]) == 0
        assert said(capsys) == [
            {"folder": result["folder"], "shards": 1, "tokens": result["tokens"], "sound": True}
        ]
    assert main(["data", "verify", *(result["folder"] for result in made), "--json"]) == 0  # as a shell's *
    [both] = [told["sources"] for told in said(capsys)]
    assert [one["tokens"] for one in both] == [result["tokens"] for result in made]
    assert main(["data", "verify"]) == 2 and "no folder to verify" in capsys.readouterr().err
    with open(f"{made[0]['folder']}/shard-00000.bin", "r+b") as file:
        file.write(b"\1\0\1\0")
    assert main(["data", "verify", made[0]["folder"]]) == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["prepare", "verify", "tokenizer"])
def test_help_says_what_each_kind_is_for(kind, capsys):
    assert main(["data", "--help"]) == 0
    assert f"\n  {kind} " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["data", kind, "--help"])
    usage, description = capsys.readouterr().out.split("\n\n")[:2]
    assert f"dadlm data {kind}" in usage and len(description.split()) > 5 and "─" not in description


def test_rows_of_a_mixture(texts):
    data = DataConfig(train="3:a.jsonl,1:b.txt", tokenizer="bpe:300", valid_share=0.2)
    tokenizer = load_tokenizer(data)
    rows, valid = load_rows(data, tokenizer, 16)
    assert isinstance(rows, Mixture)
    only_a, valid_a = load_rows(DataConfig(train="a.jsonl", valid_share=0.2), tokenizer, 16)
    chosen = training_rows(rows, 0, 1000, 0)
    assert int((chosen < len(only_a)).sum()) == 750
    assert all(rows[n].equal(only_a[n]) for n in range(len(only_a)))
    held_out = {tuple(row.tolist()) for row in valid_a}
    assert len(valid) == 1000
    assert Counter(tuple(row.tolist()) in held_out for row in valid) == {True: 750, False: 250}


def test_rows_of_documents(texts):
    data = DataConfig(train="a.jsonl", tokenizer="bpe:300", rows="documents")
    tokenizer = load_tokenizer(data)
    rows, valid = load_rows(data, tokenizer, 512)  # longer than any document
    assert isinstance(rows, DocumentRows)
    assert [tokenizer.decode(row) for row in (*rows, *valid)] == texts

    for share in (0.05, 0.33, 0.8):  # no document is trained on and validated on
        parts = load_rows(replace(data, valid_share=share), tokenizer, 16)  # some ten rows a document
        whole = ["".join(tokenizer.decode(row) for row in rows) for rows in parts]
        border = len(texts) - round(share * len(texts))
        places = (border - 1, border, border + 1)
        assert any(whole == ["".join(texts[:at]), "".join(texts[at:])] for at in places)
