"""One thread where that is wanted, as many as before afterwards."""

import pytest
import torch

from dadlm.threads import one_thread


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("wanted", "inside"), [(True, 1), (False, 3)])
def test_threads_come_back(wanted: bool, inside: int) -> None:
    with one_thread(wanted):
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_threads_come_back_after_an_error() -> None:
    with pytest.raises(ValueError), one_thread():
        raise ValueError
    assert torch.get_num_threads() == 3
