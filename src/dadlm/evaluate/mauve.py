"""MAUVE of two sets of features, with an interval over samples and clusterings.

`mauve-text` clusters the features into two histograms and draws their divergence curve. Clustering is what
costs, so the bootstrap redraws the histograms and does not repeat it.

n_p, n_q samples of the two sets, D width of a feature, k clusters.
"""

from functools import partial
from unittest.mock import patch

import numpy as np

from dadlm.errors import ConfigError, DataError

FEWEST = 10
"""Samples a set must have. MAUVE needs hundreds to mean something: each cluster gets ten of each set."""


def mauve(
    p: np.ndarray, q: np.ndarray, *, seed: int = 0, clusterings: int = 5, draws: int = 200
) -> dict[str, float]:
    """MAUVE of features p [n_p, D] and q [n_q, D]: the mean over clusterings, and its 95% interval.

    With one clustering the mean is what `mauve.compute_mauve` gives for this seed.
    """
    if min(len(p), len(q)) < FEWEST:
        raise ConfigError(
            f"MAUVE needs at least {FEWEST} texts in each set, here are {len(p)} and {len(q)}; "
            "ask for more samples (hundreds for a score that means something)"
        )
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        raise DataError("features hold NaN or infinity: score the texts again with a working model")
    # A tenth of the smaller set, as `mauve-text` chooses, and at most the 500 of the MAUVE paper.
    clusters = max(2, min(500, round(min(len(p), len(q)) / 10)))
    scores, redrawn = [], []
    for clustering in range(clusterings):
        p_share, q_share = _histograms(p, q, clusters, seed + clustering)
        scores.append(_area(p_share, q_share))
        # Drawing samples with replacement is drawing their labels from the histogram.
        random = np.random.default_rng([seed, clustering])
        again_p = random.multinomial(len(p), p_share, size=draws) / len(p)
        again_q = random.multinomial(len(q), q_share, size=draws) / len(q)
        redrawn += [_area(*pair) for pair in zip(again_p, again_q, strict=True)]
    return _interval(float(np.mean(scores)), np.array(redrawn))


def check_installed() -> None:
    """Asked before hours of generation, with all that the package needs."""
    try:
        import mauve.compute_mauve  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"MAUVE needs mauve-text ({error}): pip install 'dadlm[eval]', or leave it out with "
            "--embedder none"
        ) from None


def _interval(mean: float, redrawn: np.ndarray) -> dict[str, float]:
    """The spread of the redrawn scores, laid around the mean of the real ones.

    Redrawn sets have sampling noise of their own, and every difference lowers MAUVE: their scores lie below
    the real one as a whole, so bare percentiles would leave it outside. In simulations the interval is right
    for scores up to 0.9 and up to three times too wide near 1. MAUVE also depends on the number of samples:
    compare scores of equally many.
    """
    low, high = mean + np.quantile(redrawn - redrawn.mean(), [0.025, 0.975])
    return {"mean": mean, "low": max(0.0, min(float(low), mean)), "high": min(1.0, max(float(high), mean))}


def _histograms(p: np.ndarray, q: np.ndarray, clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[k] of each set: the share of its samples in every cluster."""
    import faiss
    from mauve.compute_mauve import cluster_feats

    # Only silences a line on stderr for each clustering: MAUVE wants few points for each cluster.
    quiet = partial(faiss.Kmeans, min_points_per_centroid=1)
    with patch.object(faiss, "Kmeans", quiet):
        return cluster_feats(p, q, clusters, norm="l2", whiten=False, seed=seed)[:2]


def _area(p_share: np.ndarray, q_share: np.ndarray) -> float:
    """Area under the divergence curve of two histograms [k], the mean of both ways to integrate it."""
    from mauve.compute_mauve import get_divergence_curve_for_multinomials
    from sklearn.metrics import auc

    curve = get_divergence_curve_for_multinomials(p_share, q_share, np.linspace(1e-6, 1 - 1e-6, 25), 5)
    x, y = curve.T
    by_x, by_y = np.argsort(x), np.argsort(y)
    return float(auc(x[by_x], y[by_x]) + auc(y[by_y], x[by_y])) / 2
