"""The two C programs of the benchmark, built when they are first needed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "native"
BUILT = Path(__file__).parent.parent / ".cache" / "bench"


def build(name: str) -> Path:
    """`bench/native/<name>.c` compiled; built again when a source is newer."""
    target = BUILT / name
    sources = [HERE / f"{name}.c", HERE / "kafka_wire.h"]
    if not target.exists() or target.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        BUILT.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-Wall", "-o", str(target), str(sources[0])], check=True)
    return target


def load(*arguments: object, timeout: float = 300) -> dict[str, Any]:
    """One run of the load generator; its JSON. Raises RuntimeError with what it said when it fails."""
    command = [str(build("load")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return json.loads(done.stdout)
