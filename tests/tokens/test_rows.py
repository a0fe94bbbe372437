"""Rows of a stream, rows of one document each, and the order of training."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dadlm.errors import DataError
from dadlm.tokens import DocumentRows, Rows, prepare, training_rows

EOT = 99


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8), context=st.integers(1, 12))
def test_rows_run_across_the_borders_of_arrays(sizes, context):
    ids = np.arange(sum(sizes), dtype=np.uint16)
    arrays = np.split(ids, np.cumsum(sizes)[:-1])
    if len(ids) < context:
        with pytest.raises(DataError):
            Rows(arrays, context)
        return
    rows = Rows(arrays, context)
    whole = ids[: len(ids) // context * context].reshape(-1, context)
    assert len(rows) == len(whole)
    assert rows.batch(range(len(rows))).tolist() == whole.tolist()
    assert [row.tolist() for row in rows] == whole.tolist()  # iteration ends by itself


def test_rows_of_shards(bpe, prose, tmp_path):
    (tmp_path / "a.txt").write_text(prose(3_000))
    shards = prepare(tmp_path / "a.txt", bpe, tmp_path, shard_tokens=100, progress=False)
    rows = Rows.from_shards(shards, 64)
    ids = [*bpe.encode(prose(3_000)), bpe.eot_id]
    assert len(shards.arrays) > 5
    assert torch.cat(list(rows)).tolist() == ids[: len(rows) * 64]


def test_batch_is_int64_in_the_order_asked():
    rows = Rows.from_ids(torch.arange(10), 3)
    batch = rows.batch(torch.tensor([2, 0, 2]))
    assert batch.dtype == torch.int64
    assert batch.tolist() == [[6, 7, 8], [0, 1, 2], [6, 7, 8]]
    assert rows[1].tolist() == [3, 4, 5]
    for index in (3, -1):
        with pytest.raises(IndexError):
            rows[index]


def test_too_few_tokens_says_how_many_and_what_to_do():
    with pytest.raises(DataError, match=r"10 tokens are fewer than one row of 11.*at most 10 or give more"):
        Rows.from_ids(list(range(10)), 11)
    with pytest.raises(DataError, match="at least 1"):
        Rows.from_ids([1], 0)


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


@given(sizes=st.lists(st.integers(0, 9), min_size=2, max_size=9), context=st.integers(1, 6), data=st.data())
def test_a_border_is_the_nearest_beginning_of_a_document(sizes, context, data):
    """Also in a part of the rows; the first row is no border, for nothing would be before it."""
    stream = np.array([i for size in sizes for i in [*[0] * size, EOT]], dtype=np.uint16)
    rows, begins = DocumentRows([stream], context, EOT), [0]
    for size in sizes:
        begins.append(begins[-1] - (-(size + 1) // context))
    first = data.draw(st.integers(0, begins[-2] - 1))  # of a part with at least one border
    part, near = rows.cut(first, len(rows)), data.draw(st.integers(0, len(rows) - first))
    distances = [abs(begin - first - near) for begin in begins[1:-1] if begin > first]
    border = part.border(near)
    assert border + first in begins[1:-1] and border > 0
    assert abs(border - near) == min(distances)
    with pytest.raises(DataError, match=r"single document.*validation text"):
        DocumentRows([np.array([1, 2, 3, EOT])], 2, EOT).border(1)


@settings(max_examples=20)  # some milliseconds a call
@given(size=st.integers(1, 70), batch=st.integers(5, 30), seed=st.integers(0, 2**40))
def test_every_epoch_has_each_row_exactly_once(size, batch, seed):
    steps = -(-3 * size // batch)
    order = torch.cat([training_rows(range(size), step, batch, seed) for step in range(steps)])
    for epoch in range(3):
        assert sorted(order[epoch * size : (epoch + 1) * size].tolist()) == list(range(size))


def test_order_changes_with_epoch_and_seed_but_not_with_the_split_of_steps():
    rows, seed = range(1000), 5
    whole = training_rows(rows, 0, 3000, seed)
    assert torch.equal(torch.cat([training_rows(rows, step, 24, seed) for step in range(125)]), whole)
    assert not torch.equal(whole[:1000], whole[1000:2000])
    assert not torch.equal(whole[:1000], training_rows(rows, 0, 1000, seed + 1))
    assert not torch.equal(whole[:1000], torch.arange(1000))
    assert torch.equal(training_rows(rows, 7, 24, seed), whole[168:192])  # resuming needs the step only
    assert 0 <= int(training_rows(range(10**9), 10**12, 1, 3)[0]) < 10**9
