import sys

import numpy as np
import pytest

from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.mauve import mauve

pytest.importorskip("mauve")


def cloud(n: int, shift: float = 0.0, seed: int = 0, width: int = 6) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(n, width)) + shift).astype(np.float32)


def reference(p: np.ndarray, q: np.ndarray, seed: int) -> float:
    from mauve import compute_mauve

    return float(compute_mauve(p_features=p, q_features=q, seed=seed).mauve)


@pytest.mark.parametrize(("n_p", "n_q", "shift"), [(120, 120, 0.3), (137, 64, 0.0), (10, 33, 0.5)])
def test_the_score_is_that_of_mauve_text(n_p: int, n_q: int, shift: float) -> None:
    p, q = cloud(n_p), cloud(n_q, shift, seed=1)
    for seed in (0, 3):
        assert mauve(p, q, seed=seed, clusterings=1, draws=2)["mean"] == pytest.approx(reference(p, q, seed))
    result = mauve(p, q, seed=3, draws=2)
    assert result["mean"] == pytest.approx(np.mean([reference(p, q, seed) for seed in range(3, 8)]))


def test_a_set_against_itself_and_against_a_far_one() -> None:
    p = cloud(100)
    same, far = mauve(p, p, draws=50), mauve(p, cloud(100, 9.0, seed=1) * [1, -1, 1, -1, 1, -1], draws=50)
    assert same["mean"] == pytest.approx(1.0) and same["low"] < same["high"] <= 1.0
    assert far["mean"] < 0.01
    for result in (same, far):
        assert 0.0 <= result["low"] <= result["mean"] <= result["high"] <= 1.0


def test_the_interval_is_as_wide_as_scores_of_fresh_samples_vary() -> None:
    def pair(trial: int) -> tuple[np.ndarray, np.ndarray]:
        return cloud(100, seed=2 * trial), cloud(100, 0.35, seed=2 * trial + 1)

    fresh = [mauve(*pair(trial), clusterings=1, draws=1)["mean"] for trial in range(40)]
    results = [mauve(*pair(trial), draws=60) for trial in range(6)]
    width = np.mean([result["high"] - result["low"] for result in results])
    # Two standard deviations to each side; 40 scores know theirs to about a tenth.
    assert 0.6 < width / (4 * np.std(fresh)) < 1.6
    assert all(result["low"] < result["mean"] < result["high"] for result in results)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    p = cloud(20)
    with pytest.raises(ConfigError, match="at least 10 texts in each set, here are 20 and 9"):
        mauve(p, p[:9])
    broken = p.copy()
    broken[3, 2] = np.nan
    with pytest.raises(DataError, match="NaN"):
        mauve(p, broken)
    with pytest.raises(DataError, match="one D for both"):
        mauve(p, p[:, :4])
    with pytest.raises(DataError, match="same feature"):
        mauve(np.ones((12, 4)), np.ones((12, 4)))
    with pytest.raises(ConfigError, match="clusterings"):
        mauve(p, p, clusterings=0)
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(ConfigError, match=r"pip install 'dadlm\[eval\]'"):
        mauve(p, p)
