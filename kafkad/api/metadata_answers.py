"""Answers of Metadata, encoded once.

An image does not change, and neither does a topic in it. So the encoded part of a topic is cached by topic,
version and listener, and assembled into answers:

    correlation id | head: brokers, cluster id, controller | count of topics | topic, topic, ... | tail

A new image keeps the parts of the topics that it shares with the one before; a change of the brokers drops
everything. The answer about all topics is cached whole while the image is current, in memory that all
connections share (`SharedAnswer`), so many clients that poll it cost neither work nor memory each.

Memory: parts and whole answers are kept for the KEPT most recently used combinations of version, listener and
flags. A shared answer stays until its slowest client has read it, and counts against no connection's memory.
Clients that change topics, ask and do not read would add one for each image, so beyond SHARED_MAX each
connection gets a copy, which counts as its own.

`Kind` has everything on which an answer depends. The caller provides the encoding of an image as messages
(`Tell`)."""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

from kafkad._native.serving.shared_answer import SharedAnswer
from kafkad.metadata.image import MetadataImage, Topic
from kafkad.protocol import codec, messages

KEPT = 4
SHARED_MAX = 16  # more than KEPT, so the current image's answers never fill it alone
SHARED_FROM = 32 << 10  # a smaller answer is copied: that is cheaper than its own file

CORRELATION_SIZE = 4
FLEXIBLE_SINCE = 9


class Kind(NamedTuple):
    """What the encoding depends on, besides the image."""

    version: int
    listener: str
    topic_operations: bool
    cluster_operations: bool


class Tell(NamedTuple):
    """Makes messages from an image, for one kind of answer."""

    response: Callable[[], Any]  # MetadataResponse without topics
    topic: Callable[[Topic], Any]  # MetadataResponse.Topics


def tail_size(version: int) -> int:
    """Return the size of the part after the topics: authorized operations of the cluster, error code, tagged
    fields."""
    return (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + (version >= FLEXIBLE_SINCE)


def array_length(count: int, version: int) -> bytes:
    """Return the length before the elements of an array, as the codec writes it."""
    if version < FLEXIBLE_SINCE:
        return count.to_bytes(4, "big")
    value, encoded = count + 1, bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Parts:
    """The encoded parts of one kind of answer, valid while the brokers stay the same."""

    def __init__(self, image: MetadataImage, kind: Kind, tell: Tell) -> None:
        self.brokers = image.brokers
        self.kind = kind
        empty = codec.encode_response(tell.response(), kind.version, 0)
        tail = tail_size(kind.version)
        before = len(empty) - tail - len(array_length(0, kind.version))
        self.head = empty[CORRELATION_SIZE:before]
        self.tail = empty[len(empty) - tail :]
        self.tail_size = tail
        self.bare_size = len(
            codec.encode_response(messages.MetadataResponse(cluster_id=None), kind.version, 0)
        )
        self.topics: dict[str, tuple[Topic, bytes]] = {}
        self.whole_image: MetadataImage | None = None
        self.whole: SharedAnswer | bytes | None = None  # the answer about all topics of that image

    def topic(self, topic: Topic, tell: Tell) -> bytes:
        known = self.topics.get(topic.name)
        if known is not None and known[0] is topic:
            return known[1]
        response = messages.MetadataResponse(topics=[tell.topic(topic)], cluster_id=None)
        frame = codec.encode_response(response, self.kind.version, 0)
        part = frame[self.bare_size - self.tail_size : len(frame) - self.tail_size]
        self.topics[topic.name] = topic, part
        return part

    def body(self, parts: list[bytes]) -> bytes:
        """Return everything after the correlation id."""
        return b"".join((self.head, array_length(len(parts), self.kind.version), *parts, self.tail))

    def forget_others(self, image: MetadataImage) -> None:
        """Drop deleted topics, before they outnumber the existing ones."""
        if len(self.topics) > 2 * len(image.topics) + 16:
            there = image.topics
            self.topics = {name: part for name, part in self.topics.items() if there.get(name) is part[0]}


class MetadataAnswers:
    """One per worker."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Kind, _Parts] = OrderedDict()
        self._shared: list[SharedAnswer] = []  # those that may be in use

    def _of(self, image: MetadataImage, kind: Kind, tell: Tell) -> _Parts:
        parts = self._parts.get(kind)
        if parts is None or parts.brokers is not image.brokers:
            parts = self._parts[kind] = _Parts(image, kind, tell)
        self._parts.move_to_end(kind)
        while len(self._parts) > KEPT:
            self._parts.popitem(last=False)
        parts.forget_others(image)
        return parts

    def some(
        self, image: MetadataImage, kind: Kind, tell: Tell, topics: Iterable[Topic], correlation_id: int
    ) -> Generator[None, None, bytes]:
        """Return the frame about `topics`, in their order. In steps."""
        parts = self._of(image, kind, tell)
        told = []
        for topic in topics:
            told.append(parts.topic(topic, tell))
            yield
        return correlation_id.to_bytes(4, "big", signed=True) + parts.body(told)

    def kept(self, image: MetadataImage, kind: Kind, correlation_id: int) -> SharedAnswer | bytes | None:
        """Return the answer about all topics, if it is cached."""
        parts = self._parts.get(kind)
        if parts is None or parts.whole_image is not image:
            return None
        self._parts.move_to_end(kind)
        return _answer(parts.whole, correlation_id)

    def everything(
        self, image: MetadataImage, kind: Kind, tell: Tell, correlation_id: int
    ) -> Generator[None, None, SharedAnswer | bytes]:
        """Make the answer about all topics, in steps. The first of several callers makes it for all."""
        parts = self._of(image, kind, tell)
        found = []
        for topic in image.topics.values():
            found.append(parts.topic(topic, tell))
            yield
            if parts.whole_image is image:
                break
        else:
            body = parts.body(found)
            if len(body) < SHARED_FROM or not self._may_share():
                parts.whole = body
            else:
                try:
                    parts.whole = SharedAnswer(body)
                    self._shared.append(parts.whole)
                except OSError:  # no descriptor: nothing is cached, and each client gets a copy
                    return correlation_id.to_bytes(4, "big", signed=True) + body
            parts.whole_image = image
        return _answer(parts.whole, correlation_id)

    def _may_share(self) -> bool:
        current = {id(parts.whole) for parts in self._parts.values()}
        self._shared = [answer for answer in self._shared if answer.in_use or id(answer) in current]
        return len(self._shared) < SHARED_MAX


def _answer(whole: SharedAnswer | bytes | None, correlation_id: int) -> SharedAnswer | bytes:
    assert whole is not None
    if isinstance(whole, SharedAnswer):
        return whole
    return correlation_id.to_bytes(4, "big", signed=True) + whole
