"""Rows of one document each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dadlm.errors import DataError
from dadlm.tokens import DocumentRows

EOT = 99


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
