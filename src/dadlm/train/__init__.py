"""Losses → weights: the loop, its checkpoints and its log."""

from dadlm.train.config import DataConfig, FinetuneConfig, RunConfig, TrainConfig
from dadlm.train.loop import Finished
from dadlm.train.route import RouteConfig, train_route
from dadlm.train.trainer import Trainer, train

__all__ = [
    "DataConfig",
    "FinetuneConfig",
    "Finished",
    "RouteConfig",
    "RunConfig",
    "TrainConfig",
    "Trainer",
    "train",
    "train_route",
]
