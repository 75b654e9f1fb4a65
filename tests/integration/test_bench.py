"""`python -m bench` measures what it says: its scenarios run from end to end, smallest, without JVM Kafka.

`make soak` runs every group; else the scenarios of 64 KB."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
SMALL = "--rounds 1 --seconds 0.05 --warm 0 --workers 2 --kafka none --no-clients --mb-max 20 --touch-mb 20"
SMALL += " --fetch-mb 20 --cold-mb 20 --partition-counts 20 --connection-counts 60 --restart-gb 0.01"
SMALL += " --recovery-gb 0.01 --aborts 300 --transactional-ids 300 --clean-mb 16 --old-fetch-mb 2"
SMALL += " --client-records 2000 --tls-connections 60 --acls 20"
GROUPS = (
    "start,produce,partitions,producers,keys,acks,codecs,half load,fetch,mixed,openmessaging,connections,"
    "tls,login floods,tls idle,acls,"
    "transactions,memory,workers,retention,disk,cold,many partitions,transactional ids,cleaner,old formats,"
    "restart,worker killed,recovery"
)
TOLD_WITH = {"memory": "start", "restart": "recovery"}  # whose table has their rows


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_scenarios_run_from_end_to_end(tmp_path: Path):
    told = tmp_path / "results.json"
    groups = GROUPS if SOAK else "produce,fetch,disk"
    command = [sys.executable, "-m", "bench", *SMALL.split(), "--groups", groups]
    command += [] if SOAK else ["--only", "64 KB"]
    command += ["--json", str(told), "--plot", str(tmp_path / "ratios"), "--disk-directory", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(told.read_text())["results"]
    assert set(results) == {TOLD_WITH.get(group, group) for group in groups.split(",")}
    for scenarios in results.values():
        for scenario, brokers in scenarios.items():
            assert scenario in ended.stdout
            rates = [figures["MB/s"]["median"] for figures in brokers.values() if "MB/s" in figures]
            assert min(rates, default=1) > 0, (scenario, brokers)
