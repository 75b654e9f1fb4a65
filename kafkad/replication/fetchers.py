"""The replica fetchers of this worker: connections to leaders, and partitions that stop.

    Fetchers        all partitions that this worker follows, as the metadata says
    LeaderFetcher   one connection to one leader and the partitions fetched there. It is opened for the first
                    partition, and again after a back-off if it is lost
    ReplicaFetch    (native) requests and answers; appends batches to the logs

A partition belongs to one LeaderFetcher, under one leader epoch. With a later epoch it is removed and added
again, even if the leader is the same broker, so that answers for the old epoch are ignored. If the epoch is
equal, nothing happens.

The native code reports why a partition stopped, after it has parsed the bytes at hand: an error code, a
diverging epoch, or records that it cannot append. The partition is resumed after replica.fetch.backoff.ms, or
when its log is truncated. If waiting cannot help, it fails until its next leader epoch, with one log line.

The TLS handshake and the SASL login come before the first Fetch (server/node_links). OpenSSL runs in the
native code and decrypts into the same buffer. When the session of a login ends, a new connection is opened.

Not supported yet: messages of magic 0 and 1.

Source: AbstractFetcherThread, ReplicaFetcherThread, AbstractFetcherManager."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from kafkad._native.serving.followed import DELAYED, FAILED, FETCHING, TRUNCATING
from kafkad._native.serving.outgoing_tls import OutgoingTls
from kafkad._native.serving.reactor import Reactor
from kafkad._native.serving.replica_fetch import ReplicaFetch
from kafkad._native.serving.replication_quota import ReplicationQuota
from kafkad.config.broker import BrokerConfig
from kafkad.log import runs
from kafkad.log.cutting import Cutting
from kafkad.log.log import Log
from kafkad.metadata.image import MetadataImage, PartitionState
from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.replication import truncation
from kafkad.replication.truncation import Cut, StartAnew

logger = logging.getLogger("kafkad.replication")

Key = tuple[bytes, int]  # topic id, partition

# metadata.version from which on replicas fetch by this version (MetadataVersion.fetchRequestVersion)
FETCH_VERSIONS: Final = ((27, 18), (21, 17), (19, 16), (10, 15), (9, 14), (0, 13))
LATEST: Final = -1
EARLIEST: Final = -2
EARLY_MS: Final = (10, 20, 50, 100)  # pauses if the leader may not have our metadata yet; it usually has soon
PAUSE_MS: Final = 50  # if the leader answers without waiting for data
THROTTLED_MS: Final = 50  # between checks of a quota
RECONNECT_MS: Final = 50
RECONNECT_MS_MAX: Final = 1_000
FOR_EVER_S: Final = 1e9
LOOK_S: Final = 1.0  # between checks of a connection: time-out, new broker epoch, end of the login
RECEIVE_BUFFER_DEFAULT: Final = 64 << 10  # Kafka's; the kernel chooses better (ARCHITECTURE.md)
EARLY: Final = frozenset(
    {
        errors.UNKNOWN_LEADER_EPOCH,
        errors.UNKNOWN_TOPIC_ID,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.NOT_LEADER_OR_FOLLOWER,
    }
)
NEVER_HEALS: Final = frozenset({errors.OFFSET_MOVED_TO_TIERED_STORAGE, errors.UNSUPPORTED_FOR_MESSAGE_FORMAT})


def fetch_version(metadata_version: int) -> int:
    """Return the version of Fetch that replicas use at this level of metadata.version."""
    return next(version for level, version in FETCH_VERSIONS if metadata_version >= level)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode."""
    value = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def fetcher_number(topic: str, partition: int, count: int) -> int:
    """Return which of `count` fetchers of a leader has a partition (AbstractFetcherManager.getFetcherId)."""
    value = (31 * java_hash(topic) + partition) & 0xFFFFFFFF
    value = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if value == -(1 << 31) else abs(value)) % count


def _name_of(code: int) -> str:
    return errors.NAMES.get(code, f"error {code}")


class Unusable(Exception):
    """The leader has no usable listener."""


class Secured(NamedTuple):
    """A connection after its handshake and login."""

    tls: OutgoingTls | None
    renew_s: float | None  # until the next login; None: it is valid for ever


PLAIN: Final = Secured(None, None)


class Links(Protocol):
    """Opens connections to other brokers (server/node_links)."""

    @property
    def is_plain(self) -> bool: ...

    def connect(self, host: str, port: int, client_id: str, *, timeout_s: float) -> Awaitable[Channel]: ...

    def secure(self, plain: socket.socket, host: str, port: int, reactor: Reactor) -> Awaitable[Secured]: ...


class FetcherId(NamedTuple):
    """Identifies a connection to a leader."""

    leader: int
    number: int


class Followed:
    """A followed partition."""

    __slots__ = ("cutting", "epoch", "log", "owed", "reported", "retries", "timer")

    def __init__(self, log: Log, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.retries = 0  # because the leader did not know of this epoch, or of the partition
        self.reported = ""  # the last log line
        self.timer: Any = None
        self.owed: Cut | None = None  # nothing is fetched before that
        self.cutting: Cutting | None = None  # it is under way


class Fetchers:
    """All partitions that this worker follows."""

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        *,
        broker_epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        loop: asyncio.AbstractEventLoop,
        random: Random,
        fatal: Callable[[BaseException], Any],
        quota: ReplicationQuota | None = None,
        links: Links | None = None,
    ) -> None:
        """`links`: None: connect by PLAINTEXT."""
        self.quota = quota
        self.reactor = reactor
        self.links = links
        self.config = config
        self.broker_id: int = config.node_id
        self.broker_epoch = broker_epoch
        self.image = image
        self.loop = loop
        self.random = random
        self.closed = False
        self._fatal = fatal
        self._fetchers: dict[FetcherId, LeaderFetcher] = {}
        self._fetcher_ids: dict[Key, FetcherId] = {}
        self._epochs: dict[Key, int] = {}

    def follow(self, log: Log, state: PartitionState) -> None:
        """Fetch a partition from the leader in the metadata, or stop if that is this broker."""
        key = log.topic_id, log.partition
        if state.leader == self.broker_id:
            self.remove(*key)
            return
        if self._epochs.get(key) == state.leader_epoch:
            return
        self.remove(*key)
        if state.leader < 0 or log.ended or self.closed:
            return
        number = fetcher_number(log.topic, log.partition, self.config.num_replica_fetchers)
        fetcher_id = FetcherId(state.leader, number)
        fetcher = self._fetchers.get(fetcher_id)
        if fetcher is None:
            fetcher = self._fetchers[fetcher_id] = LeaderFetcher(self, fetcher_id)
        self._fetcher_ids[key] = fetcher_id
        self._epochs[key] = state.leader_epoch
        fetcher.add(log, state.leader_epoch)

    def remove(self, topic_id: bytes, partition: int) -> None:
        """Stop fetching a partition. Its log is not used any more."""
        fetcher_id = self._fetcher_ids.pop((topic_id, partition), None)
        self._epochs.pop((topic_id, partition), None)
        if fetcher_id is not None:
            fetcher = self._fetchers[fetcher_id]
            fetcher.remove((topic_id, partition))
            if not fetcher.followed:
                del self._fetchers[fetcher_id]
                fetcher.close()

    def states(self) -> dict[tuple[str, int], tuple[int, int, int, int]]:
        """Return (leader, state, leader epoch, lag or -1) by topic and partition."""
        return {
            (followed.log.topic, followed.log.partition): (fetcher.id.leader, *found)
            for fetcher in self._fetchers.values()
            for key, followed in fetcher.followed.items()
            if (found := fetcher.native.state_of(*key)) is not None
        }

    def close(self) -> None:
        self.closed = True
        for key in list(self._fetcher_ids):
            self.remove(*key)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (trouble := task.exception()) is not None:
            self._fatal(trouble)


class LeaderFetcher:
    """One connection to one leader, and its partitions. It is the `sink` of its ReplicaFetch."""

    def __init__(self, fetchers: Fetchers, fetcher_id: FetcherId) -> None:
        config = fetchers.config
        self.fetchers = fetchers
        self.id = fetcher_id
        self.followed: dict[Key, Followed] = {}
        self.native = ReplicaFetch(
            fetchers.reactor,
            self,
            broker_id=fetchers.broker_id,
            client_id=f"broker-{fetchers.broker_id}-fetcher-{fetcher_id.number}".encode(),
            version=fetch_version(fetchers.image().metadata_version),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_bytes=config.replica_fetch_max_bytes,
            batch_bytes_max=config.socket_request_max_bytes,
            quota=fetchers.quota,
        )
        self._throttled: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._reported = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._run())

    def __repr__(self) -> str:
        return f"<LeaderFetcher {self.id.number} of broker {self.id.leader}>"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.fetchers.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- partitions ------------------------------------------------------------------------------------------

    def add(self, log: Log, epoch: int) -> None:
        key = log.topic_id, log.partition
        followed = self.followed[key] = Followed(log, epoch)
        begins = truncation.begins_at(log.end_offset, log.high_watermark, log.leader_epochs.latest)
        self.native.add(log.native, *key, epoch)
        if log.halted:
            self._delay(key, followed)
        elif begins.cut:
            self._cut(key, followed, Cut(begins.offset, True))

    def remove(self, key: Key) -> None:
        followed = self.followed.pop(key)
        if followed.timer is not None:
            followed.timer.cancel()
        if followed.cutting is not None:
            followed.cutting.cancel()
        self.native.remove(*key)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._throttled is not None:
            self._throttled.cancel()
        self.native.detach("nothing is fetched from this leader any more")

    def _current(self, topic_id: bytes, partition: int, epoch: int) -> Followed | None:
        """Return the partition; None if the report is outdated: it is not followed any more, or under another
        epoch."""
        followed = self.followed.get((topic_id, partition))
        return followed if followed is not None and followed.epoch == epoch else None

    # -- called by ReplicaFetch
    # --------------------------------------------------------------------------------

    def error(self, topic_id: bytes, index: int, epoch: int, code: int) -> None:
        followed = self._current(topic_id, index, epoch)
        if followed is None:
            return
        key = topic_id, index
        if code == errors.OFFSET_OUT_OF_RANGE:
            self.native.stop(*key, TRUNCATING)
            self._spawn(self._out_of_range(key, followed))
        elif code == errors.FENCED_LEADER_EPOCH:
            # The metadata will have a later epoch soon, which adds the partition again.
            self._fail(key, followed, _name_of(code), logging.INFO)
        elif code in NEVER_HEALS:
            self._fail(key, followed, _name_of(code))
        elif code in EARLY and followed.retries < len(EARLY_MS):
            followed.retries += 1
            self._delay(key, followed, EARLY_MS[followed.retries - 1])
        else:
            self._report(followed, f"the leader answers {_name_of(code)}", logging.INFO)
            self._delay(key, followed)

    def diverged(self, topic_id: bytes, index: int, epoch: int, leader_epoch: int, end: int) -> None:
        followed = self._current(topic_id, index, epoch)
        if followed is None:
            return
        log = followed.log
        try:
            cut = truncation.diverged(
                leader_epoch,
                end,
                end_offset=log.end_offset,
                high_watermark=log.high_watermark,
                end_offset_for=log.end_offset_for_epoch,
            )
        except Malformed as lie:
            self.trouble(topic_id, index, epoch, False, str(lie))
            return
        self._cut((topic_id, index), followed, cut)

    def trouble(self, topic_id: bytes, index: int, epoch: int, failed: bool, why: str) -> None:
        followed = self._current(topic_id, index, epoch)
        if followed is None:
            return
        key = topic_id, index
        if failed or followed.log.ended:
            self._fail(key, followed, why)
        else:
            self._report(followed, why)
            self._delay(key, followed)

    def refused(self, topic_id: bytes, index: int, epoch: int, error: Exception) -> None:
        followed = self._current(topic_id, index, epoch)
        if followed is None:
            return
        if isinstance(error, AssertionError):
            raise error
        heals = isinstance(error, KafkaError) and error.code not in NEVER_HEALS and not followed.log.ended
        self.trouble(topic_id, index, epoch, not heals, str(error) or repr(error))

    def answered(self, code: int) -> None:
        self._say(f"it answers every Fetch with {_name_of(code)}")

    def paused(self) -> None:
        self.fetchers.loop.call_later(PAUSE_MS / 1000, self.native.go)

    def throttled(self) -> None:
        """All partitions are throttled: check again soon."""
        if self._throttled is None:
            self._throttled = self.fetchers.loop.call_later(THROTTLED_MS / 1000, self._try_throttled)

    def _try_throttled(self) -> None:
        self._throttled = None
        self.native.go()

    def lost(self, reason: str) -> None:
        if self.followed:
            self._say(f"the connection is lost: {reason}", logging.INFO)
        self._lost.set()

    def go_on(self, log: Any, base: int, epoch: int, now_ms: int) -> None:
        runs.go_on(log, base, epoch, now_ms)

    def overlap(self, log: Any, base: int, last: int) -> bool:
        anew = truncation.begins_anew(log.log_start_offset, log.end_offset, base, last)
        if anew is None:
            return False
        log.truncate_fully_and_start_at(anew.offset)
        return True

    # -- stopping and resuming -------------------------------------------------------------------------------

    def _delay(self, key: Key, followed: Followed, delay_ms: int | None = None) -> None:
        self.native.stop(*key, DELAYED)
        wait_ms = self.fetchers.config.replica_fetch_backoff_ms if delay_ms is None else delay_ms
        if followed.timer is not None:
            followed.timer.cancel()
        followed.timer = self.fetchers.loop.call_later(wait_ms / 1000, self._resume, key, followed)

    def _resume(self, key: Key, followed: Followed) -> None:
        followed.timer = None
        if self.followed.get(key) is not followed:
            return
        if followed.log.halted:  # it is truncated when there is room
            self._delay(key, followed)
        elif followed.owed is not None:
            self._cut(key, followed, followed.owed)
        else:
            self.native.resume(*key)

    def _fail(self, key: Key, followed: Followed, why: str, level: int = logging.ERROR) -> None:
        self._report(followed, f"not fetched any more in leader epoch {followed.epoch}: {why}", level)
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None
        self.native.stop(*key, FAILED)

    def _cut(self, key: Key, followed: Followed, to: Cut | StartAnew) -> None:
        """Truncate the log and resume. If nothing was removed, the next Fetch would be the same, so wait
        first."""
        log = followed.log
        end, epoch = log.end_offset, log.leader_epochs.latest
        went = True
        self.native.stop(*key, TRUNCATING)
        if isinstance(to, Cut) and to.offset < end:
            if followed.owed is None:
                level = logging.WARNING if to.offset < log.high_watermark else logging.INFO
                logger.log(level, "%s-%d is cut from %d to %d, where it and its leader's log part (HW is %d)",
                           log.topic, log.partition, end, to.offset, log.high_watermark)  # fmt: skip
            assert followed.cutting is None
            followed.owed = to
            followed.cutting = log.begin_truncation(to.offset, partial(self._truncated, key, followed))
            return
        followed.owed = None
        try:
            if isinstance(to, StartAnew):
                logger.warning("%s-%d begins anew at %d: its leader's log begins behind its end %d",
                               log.topic, log.partition, to.offset, end)  # fmt: skip
                log.truncate_fully_and_start_at(to.offset)
            elif went := log.truncate_to(to.offset):
                logger.info("%s-%d forgets leader epoch %s: it wrote nothing in it that its leader has",
                            log.topic, log.partition, epoch)  # fmt: skip
        except KafkaError as error:
            self.refused(*key, followed.epoch, error)
            return
        if went:
            self._resume(key, followed)
        else:
            self._delay(key, followed)

    def _truncated(self, key: Key, followed: Followed, refusal: KafkaError | None) -> None:
        followed.cutting = None
        if refusal is None:
            followed.owed = None
            self._resume(key, followed)
        else:
            self.refused(*key, followed.epoch, refusal)

    def _report(self, followed: Followed, text: str, level: int = logging.WARNING) -> None:
        """Log a line about a partition, unless it is the same as the last one."""
        if followed.reported != text:
            followed.reported = text
            logger.log(level, "%s-%d, fetched from broker %d: %s",
                       followed.log.topic, followed.log.partition, self.id.leader, text)  # fmt: skip

    def _say(self, text: str, level: int = logging.WARNING) -> None:
        if self._reported != text:
            self._reported = text
            logger.log(level, "fetching from broker %d: %s", self.id.leader, text)

    # -- the connection --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            answers = self.native.answers
            try:
                opened = await self._open()
                secured = await self._secured(opened)
                await self._watch(opened, secured)
            except (OSError, TimeoutError, UnicodeError) as trouble:
                reason = getattr(trouble, "strerror", None) or str(trouble) or type(trouble).__name__
                self._say(f"it cannot be reached: {reason}")
            except (Unusable, Unreachable) as trouble:
                self._say(str(trouble))
            failures = 0 if self.native.answers > answers else failures + 1
            wait_ms = min(RECONNECT_MS << min(failures, 10), RECONNECT_MS_MAX)
            await asyncio.sleep(wait_ms * self.fetchers.random.uniform(0.8, 1.2) / 1000)

    def _address(self) -> tuple[str, int]:
        """Raises Unusable."""
        name = self.fetchers.config.inter_broker_listener_name
        broker = self.fetchers.image().brokers.get(self.id.leader)
        endpoint = None if broker is None else broker.listeners.get(name)
        if endpoint is None:
            raise Unusable(f"it has no listener {name}")
        return endpoint.host, endpoint.port

    async def _open(self) -> socket.socket:
        host, port = self._address()
        config, loop = self.fetchers.config, self.fetchers.loop
        async with asyncio.timeout(config.socket_connection_setup_timeout_ms / 1000):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            trouble: OSError | None = None
            for family, kind, protocol, _, address in found:
                opened = socket.socket(family, kind, protocol)
                opened.setblocking(False)
                size = config.replica_socket_receive_buffer_bytes
                try:
                    if size not in (-1, RECEIVE_BUFFER_DEFAULT):
                        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
                    await loop.sock_connect(opened, address)
                except OSError as error:
                    opened.close()
                    trouble = error
                except BaseException:
                    opened.close()
                    raise
                else:
                    return opened
        raise trouble or OSError(f"{host} has no address")

    async def _secured(self, opened: socket.socket) -> Secured:
        """Handshake and login. Raises Unreachable, OSError; then the socket is closed."""
        links = self.fetchers.links
        if links is None or links.is_plain:
            return PLAIN
        try:
            async with asyncio.timeout(self.fetchers.config.socket_connection_setup_timeout_ms / 1000):
                return await links.secure(opened, *self._address(), self.fetchers.reactor)
        except BaseException:
            opened.close()
            raise

    async def _watch(self, opened: socket.socket, secured: Secured) -> None:
        """Fetch over a connection until it is lost. Raises OSError if the reactor cannot take it."""
        loop, config = self.fetchers.loop, self.fetchers.config
        epoch = self.fetchers.broker_epoch()
        renew_at = loop.time() + (FOR_EVER_S if secured.renew_s is None else secured.renew_s)
        self._lost.clear()
        try:
            self.native.attach(opened.fileno(), epoch, secured.tls)
        except OSError:
            opened.close()
            raise
        opened.detach()
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, max(renew_at - loop.time(), 0))):
                    await self._lost.wait()
            since_ms = self.native.waiting_since_ms
            if since_ms and loop.time() * 1000 - since_ms > config.replica_socket_timeout_ms:
                self.native.detach(f"no whole answer for {config.replica_socket_timeout_ms} ms")
            elif self.fetchers.broker_epoch() != epoch:
                self.native.detach("this broker has registered anew")
            elif loop.time() >= renew_at:
                self.native.detach("its session ends, and another one begins")
            elif self.native.answers:
                self._reported = ""

    # -- out of range ----------------------------------------------------------------------------------------

    async def _out_of_range(self, key: Key, followed: Followed) -> None:
        """Ask where the leader's log begins and ends, and truncate
        (AbstractFetcherThread.fetchOffsetAndTruncate)."""
        try:
            host, port = self._address()
            timeout_s = self.fetchers.config.replica_socket_timeout_ms / 1000
            client_id = f"broker-{self.fetchers.broker_id}-fetcher-{self.id.number}"
            links = self.fetchers.links
            connect: Callable[..., Awaitable[Channel]] = Channel.connect if links is None else links.connect
            channel = await connect(host, port, client_id, timeout_s=timeout_s)
            try:
                end = await self._list_offset(channel, followed, LATEST, timeout_s)
                start = await self._list_offset(channel, followed, EARLIEST, timeout_s)
            finally:
                channel.close()
        except (Unreachable, Unusable, KafkaError) as trouble:
            if self.followed.get(key) is not followed:
                return
            if isinstance(trouble, KafkaError) and trouble.code == errors.FENCED_LEADER_EPOCH:
                self._fail(key, followed, _name_of(trouble.code), logging.INFO)
            else:
                self._report(followed, f"its leader does not say where its log begins and ends: {trouble}")
                self._delay(key, followed)
            return
        if self.followed.get(key) is followed:
            self._cut(key, followed, truncation.out_of_range(followed.log.end_offset, start, end))

    async def _list_offset(self, channel: Channel, followed: Followed, at: int, timeout_s: float) -> int:
        cls = messages.ListOffsetsRequest
        row = cls.Topics.Partitions(
            partition_index=followed.log.partition, current_leader_epoch=followed.epoch, timestamp=at
        )
        request = cls(
            replica_id=self.fetchers.broker_id,
            topics=[cls.Topics(name=followed.log.topic, partitions=[row])],
        )
        response = await channel.ask(request, timeout_s=timeout_s, lowest=4)
        try:
            [topic] = response.topics
            [found] = topic.partitions
        except ValueError:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, "it answers what was not asked") from None
        if found.error_code:
            raise KafkaError(found.error_code)
        if found.offset < 0:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, f"it answers the offset {found.offset}")
        return int(found.offset)


def is_fetching(state: tuple[int, int, int, int]) -> bool:
    """Whether a partition of `Fetchers.states` is being fetched."""
    return state[1] == FETCHING
