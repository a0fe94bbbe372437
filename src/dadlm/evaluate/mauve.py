"""MAUVE of two sets of features, with an interval over samples and clusterings.

The steps and settings are those of `mauve-text`: unit length, PCA to 90% of the variance, k-means, two
histograms, area under their divergence curve. They are repeated here because the package does them in one
call, and the bootstrap must not repeat the clustering, which takes most of the time.

n_p, n_q samples of the two sets, D width of a feature, d width after PCA, k clusters.
"""

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
    _check(p, q, clusterings, draws)
    clusters = cluster_count(len(p), len(q))
    points = _project(p, q)
    scores, redrawn = [], []
    for clustering in range(clusterings):
        labels = _cluster(points, clusters, seed + clustering)
        sets = (labels[len(q) :], labels[: len(q)])
        p_share, q_share = (np.bincount(one, minlength=clusters) / len(one) for one in sets)
        scores.append(_area(p_share, q_share))
        # Drawing samples with replacement is drawing their labels from the histogram.
        random = np.random.default_rng([seed, clustering])
        again_p = random.multinomial(len(p), p_share, size=draws) / len(p)
        again_q = random.multinomial(len(q), q_share, size=draws) / len(q)
        redrawn += [_area(*pair) for pair in zip(again_p, again_q, strict=True)]
    return _interval(float(np.mean(scores)), np.array(redrawn))


def cluster_count(n_p: int, n_q: int) -> int:
    """A tenth of the smaller set, as `mauve-text` chooses, and at most the 500 of the MAUVE paper."""
    return max(2, min(500, round(min(n_p, n_q) / 10)))


def _interval(mean: float, redrawn: np.ndarray) -> dict[str, float]:
    """The spread of the redrawn scores, laid around the mean of the real ones.

    Redrawn sets have sampling noise of their own, and any difference lowers MAUVE, so their scores lie below
    the real one and plain percentiles would exclude it. In simulations the interval is right for scores up to
    0.9 and up to three times too wide near 1. MAUVE also depends on the number of samples: compare equal
    numbers only.
    """
    low, high = mean + np.quantile(redrawn - redrawn.mean(), [0.025, 0.975])
    return {"mean": mean, "low": max(0.0, min(float(low), mean)), "high": min(1.0, max(float(high), mean))}


def _project(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Both sets [n_q + n_p, d], q first as in `mauve-text`: k-means starts from the order of its points."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    features = normalize(np.vstack([q, p]))
    if (features == features[0]).all():
        raise DataError(
            "all texts have the same feature: there is nothing to cluster (are all of them empty?)"
        )
    pca = PCA(random_state=0).fit(features)  # all components: exact, the same whatever the random state
    width = int(np.argmax(np.cumsum(pca.explained_variance_ratio_) >= 0.9)) + 1
    return np.ascontiguousarray(pca.transform(features)[:, :width], dtype=np.float32)


def _cluster(points: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """The cluster of each point; `mauve-text`'s settings, and its seed for k-means."""
    import faiss

    settings = {"niter": 500, "nredo": 5, "update_index": True, "seed": seed + 2}
    # The last only silences a line on stderr: MAUVE wants few points for each cluster.
    kmeans = faiss.Kmeans(points.shape[1], clusters, **settings, min_points_per_centroid=1)
    kmeans.train(points)
    return kmeans.index.search(points, 1)[1].reshape(-1)


def _area(p_share: np.ndarray, q_share: np.ndarray) -> float:
    """Area under the divergence curve of two histograms [k], the mean of both ways to integrate it."""
    from mauve.compute_mauve import get_divergence_curve_for_multinomials
    from sklearn.metrics import auc

    curve = get_divergence_curve_for_multinomials(p_share, q_share, np.linspace(1e-6, 1 - 1e-6, 25), 5)
    x, y = curve.T
    by_x, by_y = np.argsort(x), np.argsort(y)
    return float(auc(x[by_x], y[by_x]) + auc(y[by_y], x[by_y])) / 2


def check_installed() -> None:
    """Asked before hours of generation, with all that the package needs."""
    try:
        import mauve.compute_mauve  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"MAUVE needs mauve-text ({error}): pip install 'dadlm[eval]', or leave it out with "
            "--embedder none"
        ) from None


def _check(p: np.ndarray, q: np.ndarray, clusterings: int, draws: int) -> None:
    check_installed()
    if min(len(p), len(q)) < FEWEST:
        raise ConfigError(
            f"MAUVE needs at least {FEWEST} texts in each set, here are {len(p)} and {len(q)}; "
            "ask for more samples (hundreds for a score that means something)"
        )
    if clusterings < 1 or draws < 1:
        raise ConfigError(f"clusterings ({clusterings}) and draws ({draws}) must be at least 1")
    if p.ndim != 2 or p.shape[1:] != q.shape[1:]:
        raise DataError(f"features must be [n, D] with one D for both sets, not {p.shape} and {q.shape}")
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        raise DataError("features hold NaN or infinity: score the texts again with a working model")
