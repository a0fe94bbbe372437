"""Some positions of blocks: found among all of them, or one in each row."""

import torch

from dadlm.decode.places import one_of_each_row, some_of_all


def test_one_of_each_row_is_what_is_found_among_all() -> None:
    """Rows without a wanted position stay out; what is put elsewhere is not looked at."""
    wanted = torch.zeros(4, 5, dtype=torch.bool)
    wanted[[0, 1, 3], [2, 0, 4]] = True
    values, of_rows = torch.randn(4, 5, 3), torch.tensor([10, 11, 12, 13])
    found, one = some_of_all(wanted, None), one_of_each_row(wanted)
    there = [0, 1, 3]
    assert torch.equal(found.take(values), values[wanted])
    assert torch.equal(one.take(values)[there], values[wanted])
    assert torch.equal(of_rows[found.row], of_rows[one.row][there])
    for some in (found, one, some_of_all(wanted, 4)):
        assert torch.equal(some.put(some.take(values[..., 0]))[wanted], values[wanted][:, 0])


def test_blocks_of_one_token() -> None:
    wanted, values = torch.tensor([[True], [False]]), torch.randn(2, 1, 3)
    some = one_of_each_row(wanted)
    assert torch.equal(some.take(values), values[:, 0])
    assert some.put(torch.tensor([5, 6])).tolist() == [[5], [6]]
