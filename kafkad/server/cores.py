"""How many cores this process may use: the default of --workers.

The kernel lets a process use the cores of its affinity mask (taskset, a cpuset), and its control groups may
limit it to less time: a container with one CPU's worth of time gets one worker. A quota of 1.5 CPUs counts as
two, as in the JVM."""

import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return at least 1. `root`: the directory that contains proc and sys."""
    cores = len(os.sched_getaffinity(0))
    for cpus in _quotas(root):
        cores = min(cores, max(1, -int(-cpus // 1)))
    return cores


def _quotas(root: Path) -> list[float]:
    """Return the CPU quota of each of our control groups that has one."""
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for row in rows:
        number, controllers, path = row.split(":", 2)
        if number == "0" and not controllers:
            mount, read = root / "sys/fs/cgroup", _quota
        elif "cpu" in controllers.split(","):
            mount, read = root / "sys/fs/cgroup" / controllers, _quota_of_v1
        else:
            continue
        group = Path(path.lstrip("/"))  # in a container it may be the host's: then only the mount exists
        groups = [each for each in [group, *group.parents] if ".." not in each.parts]
        found += [cpus for each in groups if (cpus := read(mount / each)) is not None]
    return found


def _quota(group: Path) -> float | None:
    """Parse cpu.max: "max 100000" or "150000 100000"."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_of_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
