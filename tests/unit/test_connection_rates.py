"""Rates of new connections: who counts where, and what is given back. The clock stands still unless moved."""

from types import SimpleNamespace

from kafkad._native.serving.acceptor import packed

from kafkad._native.shared.quota_table import QuotaTable
from kafkad.server.connection_rates import UNLIMITED, ConnectionRates

HOST, OTHER = packed("10.0.0.1"), packed("10.0.0.2")


class World:
    def __init__(self, listeners=("A",), broker=UNLIMITED, inter_broker="A", **limits):
        self.now_ms = 1_000_000
        self.told = []
        table = QuotaTable(2, 3, 1)
        table.enter(1)
        table.enter(0)
        self.table = table
        self.rates = ConnectionRates(table, self.told.append, lambda: self.now_ms)
        self.configure(listeners, broker, inter_broker, limits)

    def configure(self, listeners, broker, inter_broker, limits):
        self.rates.adopt(
            SimpleNamespace(
                broker_endpoints=[SimpleNamespace(listener=name) for name in listeners],
                max_connection_creation_rate=broker,
                inter_broker_listener_name=inter_broker,
                for_listener=lambda name, key: limits.get(name, broker),
            )
        )

    def burst(self, listener="A"):
        """How many come in now, and how long the next one waits."""
        count = 0
        while (wait_ms := self.rates.enter(listener)) == 0:
            count += 1
        return count, wait_ms


def test_nobody_is_asked_without_a_limit():
    world = World()
    assert world.told in ([], [None])
    world.configure(["A"], 5, "A", {})
    world.configure(["A"], UNLIMITED, "A", {})
    assert [each is None for each in world.told[-2:]] == [False, True]


def test_two_windows_come_at_once_and_then_one_each_time_the_rate_allows_it():
    world = World(broker=5)
    count, wait_ms = world.burst()
    assert (count, wait_ms) == (10, 200)
    assert world.burst() == (0, 200)  # one that waited was not counted
    world.now_ms += 3000
    assert world.burst()[0] == 10


def test_workers_share_a_rate():
    world = World(broker=5)
    assert world.burst()[0] == 10
    world.table.become(1)
    assert world.burst()[0] == 0


def test_no_wait_is_longer_than_a_window_even_without_a_rate():
    world = World(broker=0)
    count, wait_ms = world.burst()
    assert count > 0
    assert wait_ms <= 1000


def test_the_brokers_rate_does_not_hold_for_the_brokers_own_listener():
    world = World(("A", "B"), broker=5, inter_broker="B", B=20)
    assert world.burst("B")[0] == 40
    assert world.burst("A")[0] == 10
    alone = World(("B",), broker=5, inter_broker="B", B=20)
    assert alone.burst("B")[0] == 10


def test_an_address_has_its_own_limit_or_the_default():
    world = World()
    world.rates.set_host("10.0.0.1", 2)
    world.rates.tell()
    assert world.told[-1] is world.rates
    assert [world.rates.hold(HOST) for _ in range(5)] == [0] * 4 + [500]
    assert world.rates.hold(OTHER) == 0
    world.rates.set_host(None, 1)
    assert [world.rates.hold(OTHER) for _ in range(3)] == [0, 0, 1000]
    world.rates.set_host("10.0.0.1", None)
    world.rates.set_host(None, None)
    world.rates.tell()
    assert world.told[-1] is None


def test_a_host_name_in_the_metadata_is_left_out(caplog):
    world = World()
    world.rates.set_host("broker.example", 2)
    assert "broker.example is not enforced" in caplog.text
