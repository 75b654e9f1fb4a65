"""The pytest plugin that comes with kafkad: a real Kafka broker as a fixture, without a container.

    def test_it(kafkad):
        producer = confluent_kafka.Producer({"bootstrap.servers": kafkad.bootstrap})

`kafkad` is one broker for the whole session: quick, and shared, so give your topics names of their own.
`kafkad_broker` is a fresh broker for one test, which it may kill and restart.
`kafkad_config` is a session fixture to override in a conftest.py: a dict of Kafka's keys for both.
A test that fails shows the log of its broker.

Nothing of the broker is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafkad.testing.broker import Broker


@pytest.fixture(scope="session")
def kafkad_config() -> dict[str, object]:
    """Kafka's configuration keys for the brokers of this session; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kafkad(kafkad_config: dict[str, object]) -> Iterator[Broker]:
    """A running broker, shared by the session; `.bootstrap` is its address."""
    from kafkad.testing.broker import Broker

    with Broker(config=kafkad_config) as broker:
        yield broker


@pytest.fixture
def kafkad_broker(kafkad_config: dict[str, object]) -> Iterator[Broker]:
    """A running broker of this test's own, with an empty data directory."""
    from kafkad.testing.broker import Broker

    with Broker(config=kafkad_config) as broker:
        yield broker


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails shows the log of its broker."""
    made = yield
    report = made.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for name in ("kafkad", "kafkad_broker"):
            broker = getattr(item, "funcargs", {}).get(name)
            if broker is not None:
                report.sections.append((f"log of the broker of the fixture {name!r}", broker.log))
