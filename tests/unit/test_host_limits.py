"""max.connections.per.ip.overrides with host names: looked up off the loop, left out without an address."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kafkad.net.hosts import addresses_of, is_address
from kafkad.server.host_limits import RETRY_MS, HostLimits


class Later:
    """A scheduler that runs threads and timers when the test says so."""

    def __init__(self) -> None:
        self.threads: list[tuple[Callable[[], Any], Callable[[BaseException | None], Any]]] = []
        self.timers: list[tuple[float, Callable[[], Any]]] = []

    def run_in_thread(self, fn: Callable[[], Any], callback: Callable[[BaseException | None], Any]) -> None:
        self.threads.append((fn, callback))

    def call_later(self, delay_ms: float, fn: Callable[[], Any]) -> Any:
        self.timers.append((delay_ms, fn))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def run(self) -> None:
        while self.threads:
            function, callback = self.threads.pop(0)
            try:
                function()
            except OSError as trouble:
                callback(trouble)
            else:
                callback(None)


def test_a_name_without_an_address_is_left_out_and_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """HUNTS W1: it raised on the loop, in each worker and at each start."""
    known: dict[str, list[str]] = {"here": ["10.0.0.1", "::5"]}
    asked: list[str] = []

    def look_up(host: str) -> list[str]:
        asked.append(host)
        if host not in known:
            raise OSError("Name or service not known")
        return known[host]

    applied: list[dict[str, int]] = []
    later = Later()
    limits = HostLimits(later, applied.append, look_up)
    limits.set({"127.0.0.1": 1, "here": 2, "nowhere": 5, "10.0.0.1": 9})
    assert applied == [{"127.0.0.1": 1, "10.0.0.1": 9}] and not asked  # nothing is looked up on the loop
    with caplog.at_level(logging.ERROR):
        later.run()
    assert applied[-1] == {"127.0.0.1": 1, "10.0.0.1": 9, "::5": 2}
    assert caplog.messages == [
        "max.connections.per.ip.overrides: nowhere:5 is left out, the host has no address: "
        "Name or service not known"
    ]
    [(delay_ms, again)] = later.timers
    assert delay_ms == RETRY_MS
    known["nowhere"] = ["10.0.0.2"]
    again()
    later.run()
    assert applied[-1] == {"127.0.0.1": 1, "10.0.0.1": 9, "::5": 2, "10.0.0.2": 5}
    assert asked.count("here") == 1


def test_limits_that_changed_meanwhile_win() -> None:
    applied: list[dict[str, int]] = []
    later = Later()
    limits = HostLimits(later, applied.append, lambda host: ["10.0.0.1"])
    limits.set({"a": 1})
    limits.set({"127.0.0.1": 7})
    later.run()
    assert applied[-1] == {"127.0.0.1": 7}
    limits.set({"a": 1})
    limits.close()
    later.run()
    assert applied[-1] == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%eth0"])
def test_an_address_needs_no_look_up(host: str) -> None:
    assert is_address(host)


def test_what_is_no_host_name_has_no_address() -> None:
    assert not is_address("nosuchhost.invalid")
    for host in ("nosuchhost.invalid", "a..b", "x" * 70):
        with pytest.raises(OSError):
            addresses_of(host)
    assert "127.0.0.1" in addresses_of("localhost")
