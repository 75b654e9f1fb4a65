"""`kafkad doctor spark`: check everything that a Spark job with format("kafkad") needs.

Each `Finding` is a row of a table: what was checked, what was found and, if it is a problem, what to do. Most
problems have one cause: Spark starts its Python workers with PYSPARK_PYTHON, or with the first `python3` on
the PATH, and not with the driver's Python. Then format("kafkad") is not found (a worker does the search,
too), or a worker fails with "No module named pyarrow". So the checks run the workers' Python to look for the
packages, instead of importing them here.

A broken module named pyspark_* hides every Python source of the machine, because PySpark's search imports all
of them and stops at the first failure. Each is imported separately to find it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

PYSPARK_MIN = (4, 0)
PYSPARK_FULL = (4, 2)  # admission control, available-now in several batches
PYARROW_MIN = (17,)
JAVA_MIN = 17
PROBE_SECONDS = 60
READ_SECONDS = 240

OURS = "pyspark_kafkad"
INSTALL = 'pip install "kafkad[spark]"'


@dataclass(frozen=True)
class Finding:
    check: str
    found: str
    remedy: str = ""  # empty: no problem

    @property
    def ok(self) -> bool:
        return not self.remedy


def examine(bootstrap: str | None = None, topic: str | None = None, *, read: bool = True) -> list[Finding]:
    """Return all findings, in the order in which a job would meet the problems. `read` starts Spark, which
    takes ten seconds.
    """
    findings = [driver_python()]
    python, worker = worker_python()
    findings.append(worker)
    if python is not None:
        findings += packages(python)
        if all(each.ok for each in findings if each.check == OURS):
            findings += modules(python)
    findings.append(java())
    if bootstrap is not None:
        findings.append(brokers(bootstrap))
    if read and all(each.ok for each in findings):
        findings.append(test_read(bootstrap, topic))
    return findings


def driver_python() -> Finding:
    found = f"{sys.executable} (Python {'.'.join(map(str, sys.version_info[:3]))})"
    return Finding("driver's Python", found)


def worker_python() -> tuple[str | None, Finding]:
    """Return the Python that Spark starts for its workers, by Spark's own rules, and a finding about it."""
    given = os.environ.get("PYSPARK_PYTHON")
    name, origin = given or "python3", "PYSPARK_PYTHON" if given else "PYSPARK_PYTHON is not set"
    path = shutil.which(name)
    set_it = f"set PYSPARK_PYTHON={sys.executable} before Spark starts"
    if path is None:
        return None, Finding("workers' Python", f"{name}, which is not there ({origin})", set_it)
    version = said(path, "import sys; print('.'.join(map(str, sys.version_info[:3])))")
    if version is None:
        return None, Finding("workers' Python", f"{path}, which does not run ({origin})", set_it)
    found = f"{path} (Python {version}; {origin})"
    if version.split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        return path, Finding("workers' Python", found, f"it must be the driver's version: {set_it}")
    if not given and not same_environment(path):
        return path, Finding(
            "workers' Python", found, f"it is another environment than the driver's: {set_it}"
        )
    return path, Finding("workers' Python", found)


def same_environment(path: str) -> bool:
    return said(path, "import sys; print(sys.prefix)") == sys.prefix


PACKAGES = """
import json
found = {}
for name in ("pyspark", "pyarrow", "kafkad", "pyspark_kafkad"):
    try:
        module = __import__(name)
        found[name] = [True, getattr(module, "__version__", ""), module.__file__ or ""]
    except BaseException as trouble:
        found[name] = [False, f"{type(trouble).__name__}: {trouble}", ""]
print(json.dumps(found))
"""


def packages(python: str) -> list[Finding]:
    """Check the required packages in the workers' Python."""
    text = said(python, PACKAGES)
    if text is None:
        return [Finding("packages", f"{python} does not say", f"run {python} -c 'import pyspark' to see why")]
    findings = []
    install = f"{python} -m {INSTALL}"
    for name, (there, version, path) in json.loads(text.splitlines()[-1]).items():
        remedy = ""
        if not there:
            remedy = install
        elif name == "pyspark" and numbers(version) < PYSPARK_MIN:
            remedy = f"PySpark 4.0 is the oldest with Python data sources: {python} -m pip install -U pyspark"
        elif name == "pyarrow" and numbers(version) < PYARROW_MIN:
            remedy = f"{python} -m pip install -U pyarrow"
        note = ""
        if there and name == "pyspark" and PYSPARK_MIN <= numbers(version) < PYSPARK_FULL:
            note = " (4.2 and newer know limits of a batch: maxOffsetsPerTrigger)"
        if name == OURS and there:
            version = os.path.dirname(path)
        findings.append(Finding(name, version + note, remedy))
    return findings


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


MODULES = """
import importlib, json, pkgutil
found = {}
for info in pkgutil.iter_modules():
    if info.name.startswith("pyspark_"):
        try:
            importlib.import_module(info.name)
            found[info.name] = ""
        except BaseException as trouble:
            found[info.name] = f"{type(trouble).__name__}: {trouble}"
print(json.dumps(found))
"""


def modules(python: str) -> list[Finding]:
    """Check the modules that PySpark's search for sources imports. Ours is installed."""
    text = said(python, MODULES)
    if text is None:
        return []
    found = json.loads(text.splitlines()[-1])
    broken = {name: trouble for name, trouble in found.items() if trouble}
    if not broken and OURS not in found:
        return [
            Finding(
                "pyspark_* modules",
                f"{OURS} can be imported, but PySpark's search does not see it, as in an editable install",
                f"call kafkad.spark.register(spark), or install it: {python} -m {INSTALL}",
            )
        ]
    if not broken:
        return [Finding("pyspark_* modules", ", ".join(sorted(found)) or "none")]
    return [
        Finding(
            f"module {name}",
            trouble,
            f"it hides every Python source: mend it, {python} -m pip uninstall {name.replace('_', '-')}, "
            "or call "
            "kafkad.spark.register(spark)",
        )
        for name, trouble in broken.items()
    ]


def java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = (
        f"install Java {JAVA_MIN} or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    )
    if path is None or not os.path.exists(path):
        return Finding("Java", f"{path}, which is not there" if path else "none", install)
    try:
        run = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return Finding("Java", f"{path}: {trouble}", install)
    version = re.search(r'version "(\d+)([^"]*)"', run.stderr + run.stdout)
    if version is None:
        return Finding("Java", f"{path}, which does not tell its version", install)
    found = f"{path} (Java {version[1]}{version[2]})"
    return Finding("Java", found, install if int(version[1]) < JAVA_MIN else "")


def brokers(bootstrap: str) -> Finding:
    from kafkad.client.cluster import Cluster
    from kafkad.client.connection import Unreachable
    from kafkad.protocol.errors import KafkaError

    try:
        with Cluster(bootstrap, timeout=10.0) as cluster:
            response = cluster.refresh(None)
    except (Unreachable, KafkaError, ValueError) as trouble:
        return Finding(
            "brokers", str(trouble), "kafkad serve starts one; kafka.bootstrap.servers must be its address"
        )
    topics = sum(not topic.is_internal for topic in response.topics)
    names = ", ".join(f"{broker.host}:{broker.port}" for broker in response.brokers)
    return Finding("brokers", f"{names}; {topics} topic{'' if topics == 1 else 's'}")


READ = """
import json, sys
from pyspark.sql import SparkSession
bootstrap, topic = json.loads(sys.argv[1])
spark = (SparkSession.builder.master("local[1]").appName("kafkad-doctor").config("spark.ui.enabled", "false")
         .config("spark.driver.memory", "512m").config("spark.driver.host", "127.0.0.1")
         .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
reader = spark.read.format("kafkad")
try:
    if topic is None:
        try:
            reader.load()
            told = "the source took no options"
        except Exception as trouble:
            told = "" if "they name what is read" in str(trouble) else str(trouble)
        result = [told, "format kafkad is found"]
    else:
        frame = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
        rows = frame.limit(1000).count()
        result = ["", f"{rows} record{'' if rows == 1 else 's'} of {topic}"]
except Exception as trouble:
    result = [str(trouble), ""]
print("\\n" + json.dumps(result))
spark.stop()
"""


def test_read(bootstrap: str | None, topic: str | None) -> Finding:
    """Start a session on one core, look up the source and, if there is a topic, read from it."""
    if bootstrap is not None and topic is None:
        topic = any_topic(bootstrap)
    argument = json.dumps([bootstrap, topic if bootstrap is not None else None])
    try:
        run = subprocess.run(
            [sys.executable, "-c", READ, argument], capture_output=True, text=True, timeout=READ_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "test read", f"no answer within {READ_SECONDS} s", "see what Spark logs when the job runs"
        )
    try:
        trouble, found = json.loads(run.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (run.stderr.strip() or "nothing").splitlines()[-1]
        return Finding("test read", f"Spark ended with {run.returncode}: {last}", "see what Spark logs")
    if trouble:
        return Finding("test read", essence(trouble), "see the error message; Spark's log has the details")
    return Finding("test read", found)


def any_topic(bootstrap: str) -> str | None:
    from kafkad.client.cluster import Cluster

    with Cluster(bootstrap, timeout=10.0) as cluster:
        topics = cluster.refresh(None).topics
    return min(
        (topic.name for topic in topics if not topic.is_internal and not topic.error_code), default=None
    )


def essence(trouble: str) -> str:
    """Extract the message from one of Spark's long errors: the last line of a Python traceback in it, or the
    line with Spark's error condition."""
    lines = [line.strip() for line in trouble.splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"[\w.]+(Error|Exception|Loss|Timeout|Failed|Unreachable): ", line):
            return line
    for line in lines:
        if condition := re.search(r"\[[A-Z][A-Z_.]+\] .*", line):
            return condition[0]
    return lines[0] if lines else "no word"


def said(python: str, program: str) -> str | None:
    """Return the output of a program; None if it fails."""
    try:
        run: Any = subprocess.run(
            [python, "-c", program],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            cwd=os.path.expanduser("~"),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 and run.stdout.strip() else None
