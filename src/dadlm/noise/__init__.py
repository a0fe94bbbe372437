"""Clean ids → which positions are masked, at which time, with which weight. Knows nothing of models."""

from dadlm.noise.clipping import best_interval, candidate_intervals
from dadlm.noise.masking import (
    SCHEDULES,
    Noise,
    NoiseConfig,
    Schedule,
    draw_noise,
    sample_time,
)

__all__ = [
    "SCHEDULES",
    "Noise",
    "NoiseConfig",
    "Schedule",
    "best_interval",
    "candidate_intervals",
    "draw_noise",
    "sample_time",
]
