"""Nodes of a cluster are killed, paused and cut off; no acknowledged record is lost, doubled or moved.

One fault of each kind by a fixed seed here; in `make soak` stories of ten faults of all kinds, with new
seeds. To repeat one that failed: KAFKAD_CLUSTER_SEED (the same faults, not the same moments)."""

import os
import random

import pytest

from tests.cluster_checker import ALL, SHORT, Cluster, Story

FAULTS_OF_A_STORY = 10


def stories(rounds):
    """(seed, faults) of each."""
    if "KAFKAD_CLUSTER_SEED" in os.environ:
        seeds = [int(os.environ["KAFKAD_CLUSTER_SEED"])]
    elif rounds < FAULTS_OF_A_STORY:
        return [(1, SHORT)]
    else:
        seeds = [random.randrange(1 << 32) for _ in range(0, rounds, FAULTS_OF_A_STORY)]
    return [(seed, random.Random(seed).choices(ALL, k=FAULTS_OF_A_STORY)) for seed in seeds]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_cluster_loses_nothing_whatever_is_killed(tmp_path, rounds):
    with Cluster(tmp_path) as cluster:
        for seed, faults in stories(rounds(3, 200)):
            assert Story(cluster, seed).tell(faults) > 60
