"""The partitions of this broker: opens the logs that the metadata assigns, and gives each a role.

`Partitions` follows the assignments (metadata/assignments). A partition with a replica here gets a log (a new
one, or the one found at the start), and an entry in the table in which the data plane finds it. Its role is
one of three: this broker leads it, follows its leader, or waits for a leader. A partition that was deleted,
or reassigned to other brokers, is removed from the table first, so that waiting requests are answered. Then
its log is deleted.

If the directory of a partition is missing, the table has a stand-in, which answers KAFKA_STORAGE_ERROR until
a restart finds the directory again. An empty log elsewhere would look like a loss of all records. But a
replica that is not in the ISR starts empty in another directory, if none is offline, because its leader has
the records. The same holds for a partition whose own directory is gone; one without other replicas starts
empty, as in Kafka, with an error in the log. If the directory is lost for good, the operator asks for an
unclean election: the controller names another directory, and the partition starts empty there.

If a log cannot be created or loaded, the table has a stand-in, too, and the partition is tried again until it
works: a shortage of descriptors, inodes or space may end.

Each worker opens the partitions that it owns (`ownership`), and announces them to the other workers. These
put a reader into their tables: a Partition that reads the owner's files and the owner's row. An announcement
may arrive before or after the metadata of the partition; the reader is made when both are known.

Beware: a topic that is deleted and created again has a new id. Its old logs are deleted before the new ones
are created. Those of other workers may still exist then, so a new log may be created a little later."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kafkad._native.log.partition import Partition
from kafkad._native.log.partition_reader import ReaderPartition
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.shared.watermarks import LEADER
from kafkad.config.broker import BrokerConfig
from kafkad.config.topic import TopicConfig, unusable
from kafkad.log.log import Log
from kafkad.log.log_dirs import DirectoryOccupied, LogDirs
from kafkad.log.reader import ReaderLog
from kafkad.metadata import assignments
from kafkad.metadata.assignments import Delete, Local
from kafkad.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    RECOVERING,
    TOPIC,
    MetadataImage,
    PartitionState,
    Topic,
)
from kafkad.metadata.replay import Delta
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.replication.ownership import owner_of
from kafkad.replication.throttles import sides

logger = logging.getLogger(__name__)

OCCUPIED_MS = (10, 20, 50, 100, 200, 500)  # pauses before a name that another worker must free is tried again
FAILED_MS = (*OCCUPIED_MS, 1_000, 2_000, 5_000)  # the same after a failure
REPORTED_EVERY = 120  # tries: ten minutes, between two lines about partitions that still wait
TRIED_AT_A_TIME = 4  # partitions per turn of the loop: each creates a directory and files
NO_ROW = -1  # announced for a partition that its owner could not open yet


class Announced(NamedTuple):
    """Another worker's announcement of a partition that it has opened."""

    row: int
    directory: str
    owner: int


class Partitions:
    """The partitions of this broker, by topic and index."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        log_dirs: LogDirs,
        table: PartitionTable,
        *,
        me: int = 0,
        workers: int = 1,
    ) -> None:
        self.broker_id = broker_id
        self.me = me
        self.workers = workers
        self.on_opened: Callable[[Log], None] | None = None  # (log), when it has a role and is in the table
        self.on_led: Callable[[Log], None] | None = None  # (log), when this broker begins to lead it
        self.on_role: Callable[[Log, PartitionState], None] | None = None  # (log, state), after each change
        # (another worker's partition, state), after each change
        self.on_reader: Callable[[ReaderPartition, PartitionState], None] | None = None
        self.on_failed: Callable[[str, int, bytes], None] | None = None  # (topic, index, topic id), once
        self.on_dropped: Callable[[str, int, bytes], None] | None = None  # (topic, index, topic id)
        self.config = config
        self._configs: dict[frozenset[tuple[str, str]], TopicConfig] = {}  # by their own values
        self.log_dirs = log_dirs
        self.table = table
        self._logs: dict[tuple[str, int], Log] = {}
        self._absent: set[tuple[str, int]] = set()  # the directory is missing; the table has stand-ins
        self._image: MetadataImage | None = None
        self._following = self._deleting = False  # in the middle of a change; of its deletions
        self._announced: dict[tuple[bytes, int], Announced] = {}
        # other workers' partitions in the table; None: a stand-in, because the directory is missing
        self._readers: dict[tuple[str, int], tuple[bytes, Announced | None]] = {}
        self._waiting: set[tuple[str, int]] = set()  # to try again
        self._failed: dict[tuple[str, int], str] = {}  # the reason; without a log, the table has a stand-in
        self._unled: set[tuple[str, int]] = set()  # open, but a disk error prevented leading them
        self._tries = 0  # rounds so far
        log_dirs.on_readers_offline = self._readers_offline

    # -- ownership -----------------------------------------------------------------------------------------

    def mine(self, topic: str, topic_id: bytes, index: int) -> bool:
        return owner_of(topic_id, index, self.workers) == self.me

    def owner_of(self, topic: str, index: int) -> int | None:
        """Return the worker that owns a partition; None if the image does not have it."""
        known = None if self._image is None else self._image.topics.get(topic)
        if known is None or index not in known.partitions:
            return None
        return owner_of(known.topic_id, index, self.workers)

    # -- look-ups ------------------------------------------------------------------------------------------

    def has_replica(self, topic: str, index: int) -> bool:
        """Return whether this broker has a replica of the partition, as the metadata have it."""
        known = None if self._image is None else self._image.topics.get(topic)
        state = None if known is None else known.partitions.get(index)
        return state is not None and self.broker_id in state.replicas

    def get(self, topic: str, index: int) -> Log:
        """Return the log of a partition. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR,
        and NOT_LEADER_OR_FOLLOWER for another worker's."""
        log = self._logs.get((topic, index))
        if log is not None:
            return log
        if self._image is not None:
            known = self._image.topics.get(topic)
            if known is not None and index in known.partitions:
                replicas = known.partitions[index].replicas
                here = self.broker_id in replicas and self.mine(topic, known.topic_id, index)
                comes = self._following or (topic, index) in self._waiting
                here = here and ((topic, index) in self._failed or not comes)
                raise KafkaError(errors.KAFKA_STORAGE_ERROR if here else errors.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION)

    def find(self, topic: str, index: int) -> Log | None:
        """Return the log of a partition, or None."""
        return self._logs.get((topic, index))

    def reader(self, topic: str, index: int) -> ReaderLog | None:
        """Return the reader of another worker's partition, or None."""
        known = self._readers.get((topic, index))
        return None if known is None or known[1] is None else self.table.get(topic, index).log

    def leader_elsewhere(self, topic: bytes, is_id: bool, index: int) -> tuple[int, int] | None:
        """Return the leader (-1: none) and its epoch, as the metadata has them; None if there is no such
        partition. `topic` is an id or a name."""
        if self._image is None:
            return None
        known = (
            self._image.topics_by_id.get(topic)
            if is_id
            else self._image.topics.get(topic.decode("utf-8", "replace"))
        )
        state = None if known is None else known.partitions.get(index)
        return None if state is None else (state.leader, state.leader_epoch)

    def topic_elsewhere(self, topic_id: bytes) -> bytes | None:
        """Return the name of a topic, as the metadata have it."""
        known = None if self._image is None else self._image.topics_by_id.get(topic_id)
        return None if known is None else known.name.encode()

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    # -- following the image -------------------------------------------------------------------------------

    def topic_config(self, image: MetadataImage, topic: str) -> TopicConfig:
        """Return the effective configuration: one object for all topics with the same overrides."""
        overrides = image.configs.get((TOPIC, topic))
        key = frozenset(overrides.items()) if overrides else frozenset()
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = TopicConfig.resolve(self.config, overrides or {})
            for name, text in unusable(overrides or {}).items():
                logger.error("topic %s: %s=%s cannot be applied and is left out", topic, name, text)
        return config

    def apply(self, image: MetadataImage) -> None:
        """Apply a whole image, at the start."""
        self._image = image
        self.drop_unassigned(image)
        for assigned in assignments.of_image(image, self.broker_id):
            if isinstance(assigned, Local):
                self._ensure(image, assigned)

    def drop_unassigned(self, image: MetadataImage) -> None:
        """Delete what has no replica here in this image, without following the changes in between."""
        wanted = {
            (local.topic.name, local.partition): local.topic.topic_id
            for local in assignments.of_image(image, self.broker_id)
            if isinstance(local, Local)
        }
        for (name, index), log in list(self._logs.items()):
            if wanted.get((name, index)) != log.topic_id:
                self._drop(name, index)
        for (name, index), (topic_id, _) in list(self._readers.items()):
            if wanted.get((name, index)) != topic_id:
                self._drop_reader(name, index)

    def apply_delta(self, delta: Delta, image: MetadataImage) -> None:
        """Follow one committed change at once."""
        for _ in self.follow(delta, image):
            pass

    def follow(self, delta: Delta, image: MetadataImage) -> Iterator[None]:
        """Follow one committed change, one partition per step. Deletions come first, because a name may come
        back with a new id. Then come partitions whose leader was elected, because clients wait for them; when
        a broker dies, the others have only lost a replica. The next change may be followed only after the
        last step."""
        before, self._image = self._image, image
        self._following = self._deleting = True
        others: list[Local] = []
        for assigned in assignments.of_delta(delta, before, image, self.broker_id):
            if isinstance(assigned, Delete):
                self._delete(assigned)
            else:
                self._deleting = False
                if assigned is not None and self._is_elected(assigned):
                    self._ensure(image, assigned)
                elif assigned is not None:
                    others.append(assigned)
            yield
        self._deleting = False
        for assigned in others:
            self._ensure(image, assigned)
            yield
        for resource_type, name in delta.configs_changed:
            if resource_type == TOPIC and name in image.topics:
                yield from self._update_topic(image, name)
        self._following = False

    def update_defaults(self, config: BrokerConfig) -> None:
        """The broker's configuration has changed, and so may each log's effective configuration."""
        for _ in self.follow_defaults(config):
            pass

    def follow_defaults(self, config: BrokerConfig) -> Iterator[None]:
        """Do `update_defaults`, one partition per step. Logs opened meanwhile get the new values."""
        self.config = config
        self._configs.clear()
        image = self._image
        assert image is not None  # the first one is applied before any configuration changes
        for name in image.topics:
            yield from self._update_topic(image, name)

    def _update_topic(self, image: MetadataImage, name: str) -> Iterator[None]:
        config = self.topic_config(image, name)
        for index in image.topics[name].partitions:
            log = self._logs.get((name, index))
            if log is not None:
                self._configure(log, config)
            elif (name, index) in self._readers:
                self.table.get(name, index).throttled = sides(config, index, self.broker_id)
            yield

    def _configure(self, log: Log, config: TopicConfig) -> None:
        """Apply a committed configuration. A log that cannot apply it keeps its old one."""
        before = log.config
        try:
            log.update_config(config)
        except Exception as trouble:
            logger.error(
                "%s keeps its configuration; %r cannot be applied: %r", log.directory, config, trouble
            )
            log.update_config(before)
        else:
            log.native.throttled = sides(config, log.partition, self.broker_id)

    def _delete(self, gone: Delete) -> None:
        key = gone.topic, gone.partition
        self.log_dirs.forget_missing(*key)  # every worker may have noted it
        if key in self._logs:
            self._drop(*key)
        elif key in self._absent:
            self._absent.remove(key)
            self.table.remove(*key)
        elif key in self._readers:
            self._drop_reader(*key)
        else:
            self._forget(*key)
        self._announced.pop((gone.topic_id, gone.partition), None)

    def _is_elected(self, local: Local) -> bool:
        log = self._logs.get((local.topic.name, local.partition))
        return log is not None and log.leader_epoch != local.state.leader_epoch

    def _ensure(self, image: MetadataImage, local: Local) -> None:
        topic, index, state, new = local
        key = topic.name, index
        if key in self._absent:
            if self._is_absent(state, new):
                return
            logger.warning("%s-%d does not wait for its log directory any more", *key)
            self._absent.remove(key)
            self.table.remove(*key)
        if not self.mine(topic.name, topic.topic_id, index):
            self._ensure_reader(topic, index, state, new)
            return
        config = None if key in self._logs else self.topic_config(image, topic.name)
        self._ensure_log(topic, index, state, config, new)

    def _ensure_log(
        self, topic: Topic, index: int, state: PartitionState, config: TopicConfig | None, new: bool
    ) -> None:
        """Open a partition of this worker and give it its role. `config`: if it is not open."""
        log = self._logs.get((topic.name, index))
        if log is not None and self._is_given_up(log, state):
            assert self._image is not None
            logger.error("%s is given up, the log begins empty in another directory", log.directory)
            self._drop(topic.name, index)
            log, config = None, self.topic_config(self._image, topic.name)
        opened = log is None
        if log is None:
            assert config is not None
            log = self._open(topic, index, config, state, new)
            if log is None:
                return
        opened = opened or (topic.name, index) in self._unled
        led = log.native.role == LEADER
        if state.leader == self.broker_id:
            if not self._lead(log, state):
                return
        else:
            self._follow(log, state)
        if opened and self.on_opened is not None:
            self.on_opened(log)
        if self.on_role is not None:
            self.on_role(log, state)
        if state.leader == self.broker_id and not led and self.on_led is not None:
            self.on_led(log)

    def _follow(self, log: Log, state: PartitionState) -> None:
        key = log.topic, log.partition
        if key in self._unled:  # the failure to lead it does not matter now
            self._unled.discard(key)
            self._waiting.discard(key)
            self._failed.pop(key, "")
        if not log.ended:
            log.follow(state.leader_epoch, state.leader, state.partition_epoch)

    def _lead(self, log: Log, state: PartitionState) -> bool:
        """Lead a partition; if the disk does not allow it, try again later."""
        key = log.topic, log.partition
        alone = state.replicas == (self.broker_id,)
        try:
            log.set_leader_epoch(state.leader_epoch, self.broker_id, state.partition_epoch, alone=alone)
        except KafkaError as trouble:
            self._unled.add(key)
            if not log.ended:
                log.resign(errors.KAFKA_STORAGE_ERROR)
                self._wait(key, "led", trouble)
            return False
        if key in self._unled and self._failed.pop(key, ""):
            logger.warning("partition %s-%d is led now", *key)
        self._unled.discard(key)
        return True

    def _is_absent(self, state: PartitionState, new: bool) -> bool:
        """Whether the log of a partition may be in a directory that is missing. Without an assigned
        directory, that of an existing partition may be in any."""
        directory = state.directory(self.broker_id)
        if directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED):
            return not new and any(each.offline for each in self.log_dirs.directories())
        return directory not in self.log_dirs.directory_ids() and not self._is_replaced(state)

    def _is_replaced(self, state: PartitionState) -> bool:
        """Whether the directory of a replica has been replaced: all configured directories are online, and
        this replica is not in the ISR, so the leader has the records."""
        online = not any(each.offline for each in self.log_dirs.directories())
        return online and state.leader not in (-1, self.broker_id) and self.broker_id not in state.isr

    def _is_given_up(self, log: Log, state: PartitionState) -> bool:
        """Whether the directory of an open log has failed, and an unclean election has made this broker lead
        without its records, in a directory that is online."""
        return (
            self.log_dirs.directory_of(log.topic, log.partition).offline
            and state.leader == self.broker_id
            and state.isr == (self.broker_id,)
            and state.leader_recovery_state == RECOVERING
            and state.leader_epoch > log.leader_epoch
            and state.directory(self.broker_id) in self.log_dirs.directory_ids()
        )

    def _is_needed(self, state: PartitionState) -> bool:
        """Whether other replicas would follow this one, if it was empty, and lose their records."""
        leads = state.leader in (-1, self.broker_id) or self.broker_id in state.isr
        return leads and len(state.replicas) > 1

    def _open(
        self, topic: Topic, index: int, config: TopicConfig, state: PartitionState, new: bool
    ) -> Log | None:
        log = self.log_dirs.get(topic.name, index)
        if log is not None and log.topic_id != topic.topic_id:
            # Loading moves unknown directories aside, and deletions come before creations, so this should not
            # happen: leave the directory alone.
            logger.error("%s belongs to another topic of that name and is left alone", log.directory)
            return None
        if log is None and self._is_absent(state, new):
            logger.error("the log directory of %s-%d is not there", topic.name, index)
            self._absent.add((topic.name, index))
            if not self._failed.pop((topic.name, index), ""):  # otherwise the table has its stand-in
                stand_in = self.log_dirs.stand_in(topic.name, index, topic.topic_id)
                self.table.add(stand_in, topic.name, topic.topic_id)
            return None
        key = topic.name, index
        if log is None:
            directory = state.directory(self.broker_id)
            anywhere = directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED)
            lost = directory not in self.log_dirs.directory_ids() and self._is_replaced(state)
            assigned = None if anywhere or lost else directory
            try:
                log = self.log_dirs.create(
                    topic.name, index, topic.topic_id, config, assigned, needed=self._is_needed(state)
                )
            except DirectoryOccupied:
                self._wait(key)
                return None
            except (OSError, KafkaError) as trouble:
                if key not in self._failed:
                    stand_in = self.log_dirs.stand_in(topic.name, index, topic.topic_id)
                    self.table.add(stand_in, topic.name, topic.topic_id)
                    if self.on_failed is not None:
                        self.on_failed(topic.name, index, topic.topic_id)
                self._wait(key, "opened", trouble)
                return None
        elif log.config is not config:
            self._configure(log, config)
        log.native.throttled = sides(config, index, self.broker_id)
        self._logs[key] = log
        if self._failed.pop(key, ""):
            self.table.replace(topic.name, index, log.native)
            logger.warning("partition %s-%d is open now, in %s", *key, log.directory)
        else:
            self.table.add(log.native, topic.name, topic.topic_id)
        return log

    def _forget(self, name: str, index: int) -> None:
        """Delete a partition that could not be opened."""
        self._waiting.discard((name, index))
        if self._failed.pop((name, index), ""):
            self.table.remove(name, index)
            self.log_dirs.delete(name, index)

    def _drop(self, name: str, index: int) -> None:
        log = self._logs.pop((name, index))
        self._unled.discard((name, index))
        self._waiting.discard((name, index))
        self._failed.pop((name, index), "")
        self.table.remove(name, index)
        if self.on_dropped is not None:
            self.on_dropped(name, index, log.topic_id)
        self.log_dirs.delete(name, index)
        logger.info("partition %s-%d deleted from %s", name, index, log.directory)

    # -- trying again --------------------------------------------------------------------------------------

    def _wait(self, key: tuple[str, int], what: str = "", trouble: Exception | None = None) -> None:
        """Try a partition again later. Either the previous owner of that name has not deleted the old topic
        yet; or, with `trouble`, the partition could not be opened or led."""
        if trouble is not None:
            if key not in self._failed:
                logger.error("partition %s-%d cannot be %s, will try again: %s", *key, what, trouble)
            self._failed[key] = str(trouble)
        self._waiting.add(key)
        if self._tries == 0:
            self._try_again_later()

    def _try_again_later(self) -> None:
        delays = FAILED_MS if self._failed else OCCUPIED_MS
        delay_ms = delays[min(self._tries, len(delays) - 1)]
        self._tries += 1
        waiting = sorted(self._waiting)
        if self._failed and self._tries >= len(delays) and (self._tries - len(delays)) % REPORTED_EVERY == 0:
            key = min(self._failed)
            logger.error("%d partitions still wait, of them %s-%d: %s", len(waiting), *key, self._failed[key])
        elif self._tries == len(delays):
            logger.warning("old directories of %s are still there", waiting[:10])
        self.log_dirs.scheduler.call_later(delay_ms, self._try_again)

    def _try_again(self) -> None:
        if self._following:  # deletions that are still to come may free names
            self._try_again_later()
            return
        self._try_round(deque(sorted(self._waiting)))

    def _try_round(self, keys: deque[tuple[str, int]]) -> None:
        """Try the `keys` that still wait, a few per turn of the loop."""
        if self._following:
            self._try_again_later()
            return
        for _ in range(min(TRIED_AT_A_TIME, len(keys))):
            self._try(*keys.popleft())
        if keys:
            self.log_dirs.scheduler.call_later(0, lambda: self._try_round(keys))
        elif self._waiting:
            self._try_again_later()
        else:
            self._tries = 0

    def _try(self, name: str, index: int) -> None:
        if (name, index) not in self._waiting:
            return  # deleted meanwhile
        self._waiting.remove((name, index))
        image = self._image
        topic = None if image is None else image.topics.get(name)
        if image is None or topic is None or index not in topic.partitions or (name, index) in self._absent:
            return
        state = topic.partitions[index]
        if self.broker_id not in state.replicas:
            return
        if self.mine(name, topic.topic_id, index):
            self._ensure_log(topic, index, state, self.topic_config(image, name), True)

    def failed(self) -> list[tuple[str, int, bytes]]:
        """Return (topic, index, topic id) of the partitions that could not be opened yet."""
        topics = self._image.topics if self._image is not None else {}
        return [(*key, topics[key[0]].topic_id) for key in self._failed if key[0] in topics]

    # -- other workers' partitions -------------------------------------------------------------------------

    def announced(
        self, topic: str, topic_id: bytes, index: int, row: int, directory: str, owner: int
    ) -> None:
        """Another worker has opened a partition. `row`: in the shared table; NO_ROW if it could not, and will
        try again."""
        self._announced[topic_id, index] = Announced(row, directory, owner)
        if self._deleting:
            return  # the name may still belong to an old topic; the rest of the change makes the reader
        known = None if self._image is None else self._image.topics.get(topic)
        if known is None or known.topic_id != topic_id or index not in known.partitions:
            return
        if not self.mine(topic, topic_id, index):
            self._ensure_reader(known, index)

    def withdrawn(self, topic: str, topic_id: bytes, index: int, owner: int) -> None:
        """Another worker is about to delete a partition."""
        told = self._announced.get((topic_id, index))
        if told is None or told.owner != owner:
            return
        del self._announced[topic_id, index]
        reader = self._readers.get((topic, index))
        if reader is not None and reader[0] == topic_id:
            self._drop_reader(topic, index)

    def _ensure_reader(
        self, topic: Topic, index: int, state: PartitionState | None = None, new: bool = False
    ) -> None:
        key = topic.name, index
        told = self._announced.get((topic.topic_id, index))
        absent = told is not None and (told.row == NO_ROW or self.log_dirs.is_offline(told.directory))
        if told is not None and not absent:
            if self._readers.get(key) == (topic.topic_id, told):
                self._show_reader(self.table.get(*key), topic.partitions[index])
                return
            slot = self.log_dirs.table.row(told.row)
            read = Partition.reader(topic.name, index, topic.topic_id, told.directory, slot, told.owner)
            ReaderLog(read, told.directory)
            if self._image is not None:
                read.throttled = sides(self.topic_config(self._image, topic.name), index, self.broker_id)
            self._show_reader(read, topic.partitions[index])
            reader: Partition = read
        elif (absent or (state is not None and self._is_absent(state, new))) and key not in self._readers:
            told = None
            reader = self.log_dirs.stand_in(topic.name, index, topic.topic_id)
        else:
            return
        if key in self._readers:
            before = self.table.get(topic.name, index)
            self.table.replace(topic.name, index, reader)
            before.close_files()
        else:
            self.table.add(reader, topic.name, topic.topic_id)
        self._readers[key] = topic.topic_id, told

    def _show_reader(self, reader: ReaderPartition, state: PartitionState) -> None:
        if self.on_reader is not None:
            self.on_reader(reader, state)

    def _readers_offline(self, path: str) -> None:
        """A directory has failed, in this worker or in another one."""
        for (name, index), (topic_id, told) in list(self._readers.items()):
            if told is not None and self.log_dirs.is_offline(told.directory):
                self._readers[name, index] = topic_id, None
                reader = self.table.get(name, index)
                self.table.replace(name, index, self.log_dirs.stand_in(name, index, topic_id))
                reader.close_files()

    def _drop_reader(self, name: str, index: int) -> None:
        del self._readers[name, index]
        reader = self.table.get(name, index)
        self.table.remove(name, index)
        reader.close_files()  # the object may live for long, and open files keep their disk space
