"""max.connections.per.ip.overrides, for hosts given by name.

The data plane accepts addresses only. Limits of addresses apply at once. Names are resolved in a thread, and
their limits apply when the result is there. A name without an address is logged and skipped, the other limits
stay, and the look-up is repeated every RETRY_MS: a name server may be down while a broker starts."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafkad.net.hosts import addresses_of, is_address
from kafkad.server.scheduler import LoopScheduler

logger = logging.getLogger("kafkad")

KEY: Final = "max.connections.per.ip.overrides"
RETRY_MS: Final = 60_000


def of_addresses(limits: Mapping[str, int]) -> dict[str, int]:
    return {host: limit for host, limit in limits.items() if is_address(host)}


class HostLimits:
    """Has the configured limits, and applies them as addresses. All methods run on the loop's thread."""

    def __init__(
        self,
        scheduler: LoopScheduler,
        apply: Callable[[dict[str, int]], Any],
        look_up: Callable[[str], list[str]] = addresses_of,
    ) -> None:
        self._scheduler = scheduler
        self._apply = apply
        self._look_up = look_up
        self._limits: Mapping[str, int] = {}
        self._found: dict[str, list[str]] = {}  # addresses by name
        self._failed: dict[str, str] = {}  # names without an address, with the reason that was logged
        self._retry: Any = None
        self._closed = False

    def set(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        names = [host for host in limits if not is_address(host)]
        self._found = {name: self._found[name] for name in names if name in self._found}
        self._failed = {name: self._failed[name] for name in names if name in self._failed}
        self._apply_found()
        self._ask([name for name in names if name not in self._found])

    def close(self) -> None:
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()

    def _apply_found(self) -> None:
        limits = of_addresses(self._limits)
        for name, addresses in self._found.items():
            for address in addresses:
                limits.setdefault(address, self._limits[name])  # an address given as such has precedence
        self._apply(limits)

    def _ask(self, names: list[str]) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for name in names:
            self._ask_for(name)

    def _ask_for(self, name: str) -> None:
        answer: list[str] = []

        def look_up() -> None:
            answer.extend(self._look_up(name))

        self._scheduler.run_in_thread(look_up, lambda trouble: self._answered(name, answer, trouble))

    def _answered(self, name: str, addresses: list[str], trouble: BaseException | None) -> None:
        if self._closed or name not in self._limits:
            return
        if trouble is None:
            self._found[name] = addresses
            self._failed.pop(name, None)
            self._apply_found()
            return
        if self._failed.get(name) != str(trouble):
            self._failed[name] = str(trouble)
            limit = self._limits[name]
            logger.error("%s: %s:%d is left out, the host has no address: %s", KEY, name, limit, trouble)
        if self._retry is None:
            self._retry = self._scheduler.call_later(RETRY_MS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._ask([name for name in self._failed if name in self._limits])
