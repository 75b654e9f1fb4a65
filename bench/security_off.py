"""Count the instructions of a Produce that ask whether security is on, while it is off.

    python -m bench.security_off           needs valgrind, and the C files where `make build` wrote them

A worker without TLS, authorizer and quotas serves Produces of one 2 KB batch under callgrind, which counts
the instructions of each line of C, and so of Cython. The lines that name TLS, rights or quotas are what
security costs where it is off; some of them ask other things, too. The figure has no noise: it is the
difference between two runs, by REQUESTS requests. The kernel's part, most of a request's time, is not in it.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kafkad.protocol import codec, messages
from tests.unit.reactor_world import World
from tests.wire import batch

ROOT = Path(__file__).resolve().parent.parent
WARM, REQUESTS, SHOWN = 200, 1000, 20
ASKS = re.compile(r"tls|subject|rights|authoriz|quota|muted|session_expires", re.IGNORECASE)
PRODUCE_VERSION = 8


def serve(count: int) -> None:
    """Serve Produces, in this process."""
    cls = messages.ProduceRequest
    part = cls.TopicData.PartitionData(index=0, records=bytes(batch(b"x" * 2000)))
    topic = cls.TopicData(name="t", partition_data=[part])
    request = cls(transactional_id=None, acks=1, timeout_ms=5_000, topic_data=[topic])
    frame = codec.encode_request(request, PRODUCE_VERSION, 1, "x")
    with tempfile.TemporaryDirectory(prefix="kafkad-count-") as directory:
        world = World(directory)
        world.log("t")
        wire = world.connect().socket
        wire.setblocking(True)
        for _ in range(count):
            wire.sendall(len(frame).to_bytes(4, "big") + frame)
            world.reactor.poll()
            assert wire.recv(1 << 16)
        assert not world.calls  # all of them were served natively
        world.close()


def counted(count: int, directory: Path) -> Counter[tuple[str, int]]:
    """Return the instructions of each line of C: (path, line)."""
    out = directory / f"{count}.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, "-m"]
    subprocess.run([*command, "bench.security_off", str(count)], cwd=ROOT, check=True, capture_output=True)
    return Counter(dict(_costs(out)))


def _costs(out: Path) -> Iterator[tuple[tuple[str, int], int]]:
    """The costs of lines themselves, without those of calls (the format of callgrind)."""
    names: dict[str, str] = {}
    sums: Counter[tuple[str, int]] = Counter()
    path, line, is_call = "", 0, False
    for text in out.read_text(errors="replace").splitlines():
        if found := re.match(r"(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?", text):
            if found[3]:
                names[found[2]] = found[3]
            if found[1] in ("fl", "fi", "fe"):
                path = names[found[2]]
        elif text.startswith("calls="):
            is_call = True
        elif cost := re.fullmatch(r"(\*|[+-]?\d+) (\d+)", text):
            place = cost[1]
            line = line if place == "*" else int(place) + (line if place[0] in "+-" else 0)
            if not is_call:
                sums[path, line] += int(cost[2])
            is_call = False
    yield from sums.items()


@cache
def lines_of(path: str) -> dict[int, tuple[str, int]]:
    """Return the line of Cython of each line of a C file."""
    found: dict[int, tuple[str, int]] = {}
    place = None
    file = Path(path)
    for number, text in enumerate(file.read_text(errors="replace").splitlines() if file.is_file() else (), 1):
        if mark := re.match(r'\s*/\* "(kafkad/_native/[^"]+)":(\d+)', text):
            place = mark[1], int(mark[2])
        if place is not None:
            found[number] = place
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kafkad-count-") as directory:
        costs = counted(WARM + REQUESTS, Path(directory))
        costs.subtract(counted(WARM, Path(directory)))
    native, lines = 0, Counter[tuple[str, int]]()
    for (path, line), cost in costs.items():
        if "/_native/" in path:
            native += cost
            place = lines_of(path).get(line)
            if place is not None:
                lines[place] += cost
    asking = []
    for (path, line), cost in lines.items():
        text = (ROOT / path).read_text().splitlines()[line - 1].strip()
        if cost > 0 and ASKS.search(text):
            asking.append((cost / REQUESTS, f"{path}:{line}", text))
    print(f"{native / REQUESTS:.0f} instructions of kafkad's own a Produce, of them on lines about security:")
    for each, where, text in sorted(asking, reverse=True)[:SHOWN]:
        print(f"{each:6.1f}  {where}  {text[:100]}")
    print(f"{sum(each for each, _, _ in asking):6.1f}  in all")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        main()
