"""Nodes and workers of a cluster are killed, paused and cut off, and their disks are full. No acknowledged
record is lost, doubled or moved, and an exactly-once pipeline copies each record once.

A fault of each kind by a fixed seed here; in `make soak` stories of ten faults of all kinds, with new seeds.
KAFKAD_ROUNDS is the number of faults of each test. KAFKAD_CLUSTER_SEED is the seed of the first story, and
the next ones have the next seeds; without KAFKAD_ROUNDS it is the only one (the same faults, not the same
moments)."""

import os
import random

import pytest

from tests.cluster_checker import Cluster, Story
from tests.cluster_faults import ALL, DISKS, SHORT, SHORT_WORKERS, WORKERS, Faults
from tests.cluster_transactions import PipelineStory
from tests.mixed_cluster import MIXED, SHORT_MIXED, MixedCluster, MixedStory

FAULTS_OF_A_STORY = 10
DISK_BYTES = 256 << 20


def stories(rounds, kinds, short):
    """(seed, faults) of each."""
    given = os.environ.get("KAFKAD_CLUSTER_SEED")
    if given and "KAFKAD_ROUNDS" not in os.environ:
        seeds = [int(given)]
    elif rounds < FAULTS_OF_A_STORY:
        return [(1, short)]
    else:
        count = rounds // FAULTS_OF_A_STORY
        first = int(given) if given else random.randrange(1 << 32)
        seeds = [first + number for number in range(count)]
    return [(seed, random.Random(seed).choices(kinds, k=FAULTS_OF_A_STORY)) for seed in seeds]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_cluster_loses_nothing_whatever_is_killed(tmp_path, rounds):
    with Cluster(tmp_path) as cluster:
        for seed, faults in stories(rounds(3, 200), ALL, SHORT):
            assert Story(cluster, seed).tell(faults) > 60


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_pipeline_copies_each_record_once_whatever_nodes_and_workers_are_killed(tmp_path, rounds):
    with Cluster(tmp_path, workers=2) as cluster:
        for seed, faults in stories(rounds(3, 300), WORKERS, SHORT_WORKERS):
            assert PipelineStory(cluster, seed).tell(faults) > 60


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_pipeline_copies_each_record_once_whatever_disks_are_full(tmp_path, rounds):
    with Cluster(tmp_path, disk_bytes=DISK_BYTES) as cluster:
        for seed, faults in stories(rounds(1, 100), DISKS, (Faults.fill_a_disk,)):
            assert PipelineStory(cluster, seed).tell(faults) > 60


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_same_holds_of_nodes_of_which_some_are_jvm_kafka(tmp_path, rounds):
    with MixedCluster(tmp_path) as cluster:
        for seed, faults in stories(rounds(1, 100), MIXED, SHORT_MIXED):
            assert MixedStory(cluster, seed).tell(faults) > 60
