"""The pytest plugin of kafkad: a real Kafka broker as a fixture, without a container.

    def test_it(kafkad):
        producer = confluent_kafka.Producer({"bootstrap.servers": kafkad.bootstrap})

`kafkad` is one broker for the whole session. Tests share it, so use different topic names in each test.
`kafkad_broker` is a new broker for one test, which may kill and restart it.
`kafkad_cluster` is a new cluster of three nodes for one test, which may kill and start them by number.
`kafkad_config` is a dict of Kafka's keys for all; override this session fixture in your conftest.py.
If a test fails, pytest shows the log of its broker.

The plugin imports the broker only when a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafkad.testing.broker import Broker
    from kafkad.testing.cluster import Cluster


@pytest.fixture(scope="session")
def kafkad_config() -> dict[str, object]:
    """Kafka's configuration keys for the brokers of this session; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kafkad(kafkad_config: dict[str, object]) -> Iterator[Broker]:
    """A running broker that all tests of the session share. `.bootstrap` is its address."""
    from kafkad.testing.broker import Broker

    with Broker(config=kafkad_config) as broker:
        yield broker


@pytest.fixture
def kafkad_broker(kafkad_config: dict[str, object]) -> Iterator[Broker]:
    """A running broker for this test only, with an empty data directory."""
    from kafkad.testing.broker import Broker

    with Broker(config=kafkad_config) as broker:
        yield broker


@pytest.fixture
def kafkad_cluster(kafkad_config: dict[str, object]) -> Iterator[Cluster]:
    """Three running nodes for this test only. `.bootstrap` names all of them."""
    from kafkad.testing.cluster import Cluster

    with Cluster(3, config=kafkad_config) as cluster:
        yield cluster


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the broker's log to the report of a failed test."""
    made = yield
    report = made.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for name in ("kafkad", "kafkad_broker", "kafkad_cluster"):
            broker = getattr(item, "funcargs", {}).get(name)
            if broker is not None:
                report.sections.append((f"log of the broker of the fixture {name!r}", broker.log))
