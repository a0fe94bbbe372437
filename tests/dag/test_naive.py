"""The slow truth against numbers worked out by hand: two groups, two candidates."""

import torch
from torch.testing import assert_close

from dadlm.dag import naive

EMISSION = torch.tensor([[0.5, 0.25], [0.1, 0.4]]).log()
TRANSITION = torch.tensor([[[0.75, 0.25], [0.0, 0.0]], [[0.5, 0.5], [0.2, 0.8]]]).log()
# 00: .75*.5*.5*.1   10: .25*.25*.2*.1   01: .75*.5*.5*.4   11: .25*.25*.8*.4
JOINT = torch.tensor([0.01875, 0.00125, 0.075, 0.02])


def test_paths_run_through_the_first_group_fastest():
    assert naive.all_paths(2, 2).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert naive.all_paths(3, 4).shape == (64, 3)


def test_joint_and_its_sums():
    assert_close(naive.path_logp(EMISSION, TRANSITION, naive.all_paths(2, 2)).exp(), JOINT)
    assert_close(naive.forward_logp(EMISSION, TRANSITION).exp(), torch.tensor(0.115))
    posterior = torch.tensor([[0.09375, 0.02125], [0.02, 0.095]]) / 0.115
    assert_close(naive.node_posteriors(EMISSION, TRANSITION).exp(), posterior)


def test_prior_of_paths_and_nodes():
    paths, probability = naive.path_distribution(TRANSITION)
    assert paths.tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert_close(probability, torch.tensor([0.375, 0.05, 0.375, 0.2]))
    assert_close(naive.node_marginals(TRANSITION).exp(), torch.tensor([[0.75, 0.25], [0.425, 0.575]]))


def test_best_path_and_count():
    path, logp = naive.best_path(EMISSION, TRANSITION)
    assert path.tolist() == [0, 1]
    assert_close(logp.exp(), torch.tensor(0.075))
    assert naive.count_paths(EMISSION, TRANSITION) == 4
    without_first = EMISSION.index_fill(1, torch.tensor(0), -torch.inf)
    assert naive.count_paths(without_first, TRANSITION) == 1
