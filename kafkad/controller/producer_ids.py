"""Producer ids: allocated in blocks of 1000, recorded in the metadata log so that no id is used twice.

A block is committed before its first id is used (server/producer_ids). The rest of a block is lost at a stop:
ids have 63 bits.
"""

from typing import Any, Final

from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

BLOCK_SIZE: Final = 1000
ID_MAX: Final = 2**63 - 1


def plan_block(image: MetadataImage, broker_id: int, broker_epoch: int) -> tuple[Any, int]:
    """(ProducerIdsRecord, first id of the block). Raises KafkaError once all ids are used."""
    first = max(image.next_producer_id, 0)
    if first > ID_MAX - BLOCK_SIZE:
        raise KafkaError(errors.UNKNOWN_SERVER_ERROR, "Exhausted all producerIds")
    record = messages.ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return record, first
