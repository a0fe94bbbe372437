"""Rows of one document each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dadlm.errors import DataError
from dadlm.tokens import DocumentRows, prepare

EOT = 99


@settings(deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 50), max_size=9), min_size=1, max_size=9),
    context=st.integers(1, 6),
    shard=st.integers(1, 7),
)
def test_each_document_is_cut_and_filled_by_itself(documents, context, shard):
    expected = []
    for document in documents:
        ids = [*document, EOT]
        while ids:
            expected.append((ids[:context] + [EOT] * context)[:context])
            ids = ids[context:]
    stream = np.array([i for document in documents for i in [*document, EOT]], dtype=np.uint16)
    rows = DocumentRows(np.split(stream, range(shard, len(stream), shard)), context, EOT)
    assert [row.tolist() for row in rows] == expected
    assert rows.batch(range(len(rows))).tolist() == expected
    if len(rows) > 1:
        assert [row.tolist() for row in rows.cut(1, len(rows))] == expected[1:]


def test_from_shards(bpe, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one red river"}\n{"text": "slow"}\n')
    shards = prepare(tmp_path / "a.jsonl", bpe, tmp_path, shard_tokens=2, progress=False)
    rows = DocumentRows.from_shards(shards, 64)
    assert [bpe.decode(row) for row in rows] == ["one red river", "slow"]
    assert all(row.tolist()[-1] == bpe.eot_id for row in rows)
    with pytest.raises(DataError, match="at least 1"):
        DocumentRows.from_shards(shards, 0)
