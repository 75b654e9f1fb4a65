"""Certify kafkad with Spark's own connector: run each case on kafkad (one worker, and two) and on JVM Kafka,
and compare the results.

    python tools/spark_matrix.py                          all cases, all three brokers
    python tools/spark_matrix.py --only codec             cases whose name contains this
    python tools/spark_matrix.py --brokers kafkad -v      one broker; shows the results
    python tools/spark_matrix.py --secured                SASL_SSL and ACLs for all clients of all cases
    PYTHONPATH=/opt/pyspark-4.3.0 python tools/spark_matrix.py    another PySpark
    python tools/spark_matrix.py --report --write docs/spark.md   runs nothing: the table, from the JSON files

The results of each PySpark are in .cache/spark/matrix-<version>.json. --write puts a table of all of them
into a document, between its two markers. The exit code is 1 if a cell differs or a case did not end.

The cases are in spark_cases.py, their environment in spark_world.py. A proxy in front of each broker counts
the requests (counting_proxy.py). They are printed, not compared, because it is random how often a client
polls. With --secured there is no proxy, and the cases in which it kills the broker are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from spark_cases import CASES
from spark_world import ROOT, CountingProxy, World, make_spark

RESULTS = ROOT / ".cache" / "spark"
BEGIN, END = "<!-- matrix: begin (tools/spark_matrix.py --write) -->", "<!-- matrix: end -->"
BROKERS = ("kafkad", "kafkad-2", "jvm")  # kafkad with one worker, with two
SHOWN = ("kafkad", "jvm")  # whose requests the table has
BY_PROXY = "trouble: "  # cases in which the proxy kills the broker at a request

# a cell: broker -> {"result" or "error" and "trace", "requests", "versions", "seconds"}


def run(
    spark: Any,
    brokers: list[str],
    names: list[str],
    done: Callable[[str, dict[str, Any]], None],
    secured: bool = False,
) -> None:
    """Run each case on each broker in turn, and call `done` with its cell; an exception is a cell, too."""
    scratch = Path(tempfile.mkdtemp(prefix="spark-matrix-"))
    try:
        with ExitStack() as open_until_the_end:
            worlds = []
            for kind in brokers:
                proxy = open_until_the_end.enter_context(CountingProxy())
                worlds.append(open_until_the_end.enter_context(World(kind, spark, scratch, proxy, secured)))
            for name in names:
                done(name, {world.kind: run_case(world, name) for world in worlds})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_case(world: World, name: str) -> dict[str, Any]:
    began = time.monotonic()
    world.begin(name)
    try:
        told: dict[str, Any] = {"result": json.loads(json.dumps(CASES[name](world)))}
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[:6])
        told = {
            "error": f"{type(error).__name__}: {str(error)[:300]}",
            "trace": f"{where}{str(error)[:3000]}",
        }
        for query in world.spark.streams.active:
            query.stop()
        if not world.broker.process or world.broker.process.poll() is not None:
            world.broker.restart()
    requests: dict[str, int] = {}
    versions: dict[str, int] = {}
    for (api, version), count in sorted(world.proxy.take().items()):
        requests[api] = requests.get(api, 0) + count
        versions[api] = max(version, versions.get(api, 0))
    return {**told, "requests": requests, "versions": versions, "seconds": round(time.monotonic() - began, 1)}


def verdict(cell: dict[str, dict[str, Any]]) -> str:
    """Return "equal", "DIFFERS", or what is missing."""
    if failed := [kind for kind in BROKERS if "error" in cell.get(kind, {})]:
        return "did not end on " + ", ".join(failed)
    if missing := [kind for kind in BROKERS if kind not in cell]:
        return "not run on " + ", ".join(missing)
    return "equal" if all(cell[kind]["result"] == cell["jvm"]["result"] for kind in BROKERS) else "DIFFERS"


def difference(path: str, ours: Any, theirs: Any) -> list[str]:
    """Return the differences between the results of kafkad and JVM Kafka, one line each."""
    if ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = dict.fromkeys((*ours, *theirs))
        return [line for key in keys for line in difference(f"{path}.{key}", ours.get(key), theirs.get(key))]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for n, (a, b) in pairs for line in difference(f"{path}[{n}]", a, b)]
    return [f"{path}: kafkad {json.dumps(ours)[:400]}", f"{path}: jvm    {json.dumps(theirs)[:400]}"]


def tell(name: str, cell: dict[str, dict[str, Any]], fresh: list[str], verbose: bool) -> None:
    said = verdict(cell)
    seconds = ", ".join(f"{kind} {cell[kind]['seconds']} s" for kind in fresh)
    print(f"{said:8} {name} ({seconds})", flush=True)
    if said == "DIFFERS":
        for kind in BROKERS:
            for line in difference(f"  {kind} ", cell[kind]["result"], cell["jvm"]["result"]):
                print(line)
    for kind in fresh:
        if "error" in cell[kind]:
            print(f"  {kind}: {cell[kind]['trace']}", flush=True)
        elif verbose:
            print(f"  {kind}: {json.dumps(cell[kind]['result'])[:4000]}")


# -- the table


def requests_text(cell: dict[str, dict[str, Any]]) -> str:
    ours, theirs = (cell.get(kind, {}).get("requests", {}) for kind in SHOWN)
    parts = []
    for api in sorted({*ours, *theirs}):
        a, b = ours.get(api, 0), theirs.get(api, 0)
        parts.append(f"{api} {a}" if a == b else f"{api} {a} ({b})")
    return ", ".join(parts)


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """Return the table. `results`: PySpark's version -> a file's content. Requests are of the newest
    version."""
    versions = sorted(results)
    newest = results[versions[-1]]["cells"]
    lines = [
        f"| case | {' | '.join(versions)} | requests with {versions[-1]} to kafkad (JVM Kafka, if others) |",
        "|---" * (len(versions) + 2) + "|",
    ]
    for name in CASES:
        said = [verdict(results[v]["cells"].get(name, {})) for v in versions]
        lines.append(f"| {name} | {' | '.join(said)} | {requests_text(newest.get(name, {}))} |")
    highest: dict[str, list[int]] = {}
    for cell in newest.values():
        for place, kind in enumerate(SHOWN):
            for api, version in cell.get(kind, {}).get("versions", {}).items():
                both = highest.setdefault(api, [-1, -1])
                both[place] = max(both[place], version)
    used = [
        f"{api} v{ours}" if ours == theirs else f"{api} v{ours} (v{theirs})"
        for api, (ours, theirs) in sorted(highest.items())
    ]
    lines += [
        "",
        f"Versions spoken with kafkad (with JVM Kafka, if others): {', '.join(used)}.",
    ]
    return "\n".join(lines)


def write(document: Path, table: str) -> None:
    before, found, rest = document.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{document} has no line {BEGIN} with {END} after it")
    document.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def stored() -> dict[str, dict[str, Any]]:
    return {p.stem.removeprefix("matrix-"): json.loads(p.read_text()) for p in RESULTS.glob("matrix-*.json")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", action="append", default=[], help="cases whose name contains this; may be repeated")
    add("--brokers", default=",".join(BROKERS))
    add("--secured", action="store_true", help="all clients log in over TLS and need rights")
    add("--report", action="store_true", help="run nothing")
    add("--write", type=Path, help="the document whose table is replaced")
    add("-v", "--verbose", action="store_true", help="show the results")
    options = parser.parse_args()
    failed = False
    if not options.report:
        import pyspark

        names = [name for name in CASES if not options.only or any(part in name for part in options.only)]
        if options.secured:
            names = [name for name in names if not name.startswith(BY_PROXY)]
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{'secured' if options.secured else 'matrix'}-{pyspark.__version__}.json"
        kept = json.loads(path.read_text())["cells"] if path.exists() else {}

        def done(name: str, cell: dict[str, Any]) -> None:
            nonlocal failed
            kept.setdefault(name, {}).update(cell)
            path.write_text(json.dumps({"pyspark": pyspark.__version__, "cells": kept}, indent=1))
            failed |= verdict(kept[name]) != "equal"
            tell(name, kept[name], list(cell), options.verbose)

        spark = make_spark()
        try:
            run(spark, options.brokers.split(","), names, done, options.secured)
        finally:
            spark.stop()
    if options.write:
        write(options.write, markdown(stored()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
