"""Clean ids → which positions are masked, at which time, with which weight. Knows nothing of models."""

from dadlm.noise.masking import (
    Noise,
    NoiseConfig,
    best_interval,
    candidate_intervals,
    draw_noise,
    sample_time,
)
from dadlm.noise.schedule import SCHEDULES, Schedule

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
