"""WriteTxnMarkers over several workers: each gets the markers of its partitions."""

from collections.abc import Callable, Generator, Iterable
from typing import Any

from kafkad.protocol import messages
from kafkad.server.turns import Steps

LOOKED_AT = 64  # partitions per step


def split_markers(request: Any, owner_of: Callable[[str, int], int]) -> Generator[None, None, dict[int, Any]]:
    """Return the part of the request for each worker, in the order of the request."""
    parts: dict[int, Any] = {}
    ask = messages.WriteTxnMarkersRequest
    count = 0
    for number, marker in enumerate(request.markers):
        shares: dict[int, Any] = {}
        for topic in marker.topics:
            its: dict[int, Any] = {}
            for index in topic.partition_indexes:
                owner = owner_of(topic.name, index)
                if owner not in shares:
                    fields = {field.name: getattr(marker, field.name) for field in marker.SPEC.fields}
                    shares[owner] = ask.Markers(**{**fields, "topics": []})
                    parts.setdefault(owner, ask(markers=[])).markers.append(shares[owner])
                if owner not in its:
                    its[owner] = ask.Markers.Topics(name=topic.name, partition_indexes=[])
                    shares[owner].topics.append(its[owner])
                its[owner].partition_indexes.append(index)
                count += 1
                if count % LOOKED_AT == 0:
                    yield
        if number % LOOKED_AT == LOOKED_AT - 1:
            yield
    return parts


def merge_markers(responses: Iterable[Any]) -> Steps:
    """Merge answers: each producer once, and each of its topics once, as one worker would answer."""
    merged = messages.WriteTxnMarkersResponse()
    producers: dict[int, Any] = {}
    topics: dict[tuple[int, str], Any] = {}
    for response in responses:
        for marker in response.markers:
            known = producers.get(marker.producer_id)
            if known is None:
                known = producers[marker.producer_id] = type(marker)(producer_id=marker.producer_id)
                merged.markers.append(known)
            for topic in marker.topics:
                its = topics.get((marker.producer_id, topic.name))
                if its is None:
                    topics[marker.producer_id, topic.name] = topic
                    known.topics.append(topic)
                else:
                    its.partitions.extend(topic.partitions)
                yield
    return merged
