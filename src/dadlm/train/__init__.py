"""Losses → weights: the loop, its checkpoints and its log."""

from dadlm.train.config import DataConfig, RunConfig, TrainConfig
from dadlm.train.loop import Finished, Trainer
from dadlm.train.run import train

__all__ = ["DataConfig", "Finished", "RunConfig", "TrainConfig", "Trainer", "train"]
