"""Fixtures of all tests.

The client tests take their broker from the fixture `broker` (one for the session) or `make_broker` (as many
as the test wants), and do not care what it is: `pytest --broker=jvm` runs the same tests against JVM Kafka,
which proves the tests, and `--broker=kafkad`, the default, against kafkad. `--workers 2` has every broker of
the tests served by two workers. `--secured` runs the tests that are marked `secured`, and their clients log
in over TLS and need rights (tests/guarded.py; tests/logins.py has what each kind of client needs for that).

`rounds(20, 200)` is 20 in the suite and 200 in `make soak`; KAFKAD_ROUNDS and KAFKAD_SEED choose otherwise.
"""

import gc
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.file_times import LONG, FileTimes

KINDS = ("kafkad", "jvm")
# Spark gives a Python process that it starts 10 s, which cannot be configured. On a busy machine that is not
# always enough. None of our code has run by then, so such a test may begin again, once.
NO_PYTHON = "Python worker failed to connect back"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        choices=KINDS,
        default=os.environ.get("KAFKAD_TEST_BROKER", "kafkad"),
        help="what the client tests run against: kafkad (default) or jvm, the real thing",
    )
    parser.addoption(
        "--workers",
        type=int,
        default=int(os.environ.get("KAFKAD_WORKERS") or 1),
        help="how many processes serve each broker of the tests that does not say it itself",
    )
    parser.addoption(
        "--secured",
        action="store_true",
        help="the tests marked `secured`, with brokers whose clients need TLS, a login and ACLs",
    )
    parser.addoption(
        "--marked",
        action="store_true",
        help="only the tests that are marked to run with this number of workers, too; with --secured, those "
        "that are marked `secured(short=True)`",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["KAFKAD_WORKERS"] = str(config.getoption("--workers"))
    if config.getoption("--secured"):
        os.environ["KAFKAD_SECURED"] = "1"
    # a test run in the background may have been told to ignore these; its brokers must not inherit that
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    in_ci = os.environ.get("CI") == "true"
    if in_ci:
        config.pluginmanager.import_plugin("tests.no_skips")
    config.pluginmanager.register(FileTimes(limited=in_ci), "file-times")
    # kafka-python reads its schemas in a way that is going out of fashion
    for module in (r"kafka\.protocol", r"importlib\.resources"):
        config.addinivalue_line("filterwarnings", f"ignore::DeprecationWarning:{module}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is quick and says most comes first: units, then clients, then the Spark jobs. Side by side it is
    the other way round, after the long files.
    """

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("spark"):
            return 2
        return int("integration" in item.path.parts)

    def place_beside_others(item: pytest.Item) -> tuple[int, int]:
        name = item.path.name
        return LONG.index(name) if name in LONG else len(LONG), -place(item)

    items.sort(key=place_beside_others if hasattr(config, "workerinput") else place)
    soaking, marked = os.environ.get("KAFKAD_SOAK") == "1", config.getoption("--marked")
    secured = config.getoption("--secured")

    def is_meant(item: pytest.Item) -> bool:
        if item.get_closest_marker("soak_only") and not soaking:
            return False
        if secured:
            mark = item.get_closest_marker("secured")
            return mark is not None and (not marked or mark.kwargs.get("short", False))
        mark = item.get_closest_marker("workers")
        return not marked or (mark is not None and config.getoption("--workers") in mark.args)

    config.hook.pytest_deselected(items=[item for item in items if not is_meant(item)])
    items[:] = [item for item in items if is_meant(item)]
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=NO_PYTHON))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Hide what stands now from the garbage collector, as a broker does at the end of its start.

    A full collection over 11,000 collected tests takes 60 ms. Tests that time a loop would count it, too.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def broker_kind(pytestconfig: pytest.Config) -> str:
    return pytestconfig.getoption("broker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator:
    """A failed test shows what its broker said."""
    report = yield
    if report.failed:
        for name in ("broker", "make_broker"):
            running = getattr(item, "funcargs", {}).get(name)
            for each in running.made if name == "make_broker" and running else [running]:
                if each is not None:
                    report.sections.append((f"log of the broker on {each.bootstrap}", each.log))
    return report


def new_broker(kind: str, directory: Path, config: dict[str, object]):
    """A broker of the kind under test, not yet started; a context manager."""
    from tests.jvm import TEST_CONFIG, JvmKafka

    if os.environ.get("KAFKAD_SECURED"):
        from tests.guarded import guarded

        return guarded(kind, directory / "data", config)
    if kind == "jvm":
        return JvmKafka(directory / "data", config=config)
    from kafkad.testing import Broker

    return Broker(config={**TEST_CONFIG, **config}, data_dir=directory / "data")


@pytest.fixture(scope="session")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """The broker that the client tests share; give your topics and groups names of their own (`unique`)."""
    with new_broker(broker_kind, tmp_path_factory.mktemp("broker"), {}) as running:
        yield running


@pytest.fixture
def make_broker(broker_kind: str, tmp_path: Path) -> Iterator[Callable]:
    """`make_broker(config={...})`: a running broker of this test's own, ended with it."""
    made: list = []
    with ExitStack() as running:

        def make(config: dict[str, object] | None = None, name: str = "own"):
            made.append(running.enter_context(new_broker(broker_kind, tmp_path / name, config or {})))
            return made[-1]

        make.made = made
        yield make


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """`unique("topic")`: a name that no other test uses."""
    suffix = uuid.uuid4().hex[:8]
    return lambda prefix: f"{prefix}-{suffix}"


@pytest.fixture(scope="session")
def rounds() -> Callable[[int, int], int]:
    """`rounds(short, long)`: how often to repeat, in the suite and in `make soak`.

    KAFKAD_ROUNDS, if it is set, is the answer to all: run one test at a time with it."""
    if own := os.environ.get("KAFKAD_ROUNDS"):
        return lambda short, long: int(own)
    soaking = os.environ.get("KAFKAD_SOAK") == "1"
    return lambda short, long: long if soaking else short


@pytest.fixture(scope="session")
def seeds(rounds: Callable[[int, int], int]) -> Callable[[int, int], range]:
    """`seeds(short, long)`: as many seeds as `rounds`, of a simulator that a seed determines.

    KAFKAD_SEED is the first one, 0 if it is not set."""
    first = int(os.environ.get("KAFKAD_SEED", "0"))
    return lambda short, long: range(first, first + rounds(short, long))
