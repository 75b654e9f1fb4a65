"""Requests of a broker to controllers that are other nodes: for its clients, and for itself.

    forward                  a client's request, unchanged, in an Envelope (KIP-590); the answer unchanged
    create_topics_in_passing topics that a client's Metadata (in an Envelope), or a coordinator, needs
    allocate_producer_ids    a block of 1,000 that no other broker gets (KIP-730)
    assign_directories       the log directories in which replicas were placed (KIP-858)

All use ControllerChannel.ask, which finds the active controller. Each raises KafkaError with the code for the
client, whatever went wrong on the way to the controller.

Use: server/member_worker."""

import logging
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from kafkad.api.context import RequestContext
from kafkad.config.broker import BrokerConfig
from kafkad.controller.topics import auto_created
from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.server.controller_channel import Ask

logger = logging.getLogger("kafkad")

ASSIGNMENTS_MAX: Final = 2250  # per request; Kafka: AssignReplicasToDirsRequest
IN_PASSING_VERSION: Final = 5  # of CreateTopics: the last one that no quota refuses
IN_PASSING_MS: Final = 5_000  # the longest wait of Kafka's AutoTopicCreationManager: its request.timeout.ms

Placed = Mapping[tuple[bytes, int], bytes]  # directory.id by (topic id, partition index)


def principal_bytes(principal: str, *, by_token: bool = False) -> bytes:
    """Serialize `User:name` as Kafka's DefaultKafkaPrincipalBuilder does: the version, then the message."""
    kind, _, name = principal.partition(":")
    data = messages.DefaultPrincipalData(type=kind, name=name, token_authenticated=by_token)
    return b"\0\0" + codec.encode(data, 0)


class ControllerRequests:
    """`epoch` returns the broker's epoch, `image` the image that is applied here."""

    def __init__(
        self,
        ask: Ask,
        *,
        broker_id: int,
        epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        timeout_s: float = 30.0,
    ) -> None:
        self._ask = ask
        self._broker_id = broker_id
        self._epoch = epoch
        self._image = image
        self._timeout_s = timeout_s

    async def forward(
        self,
        frame: bytes,
        principal: str,
        client_host: str,
        *,
        by_token: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        """Forward `frame`, a request from its header on, and return the answer from its header on. Raises
        KafkaError: REQUEST_TIMED_OUT without a controller, UNSUPPORTED_VERSION if the controller cannot parse
        the request (the client's connection is then closed), otherwise UNKNOWN_SERVER_ERROR."""
        request = messages.EnvelopeRequest(
            request_data=frame,
            request_principal=principal_bytes(principal, by_token=by_token),
            client_host_address=ip_address(client_host.partition("%")[0]).packed,
        )
        response = await self._answer(request, timeout_s)
        if response.error_code == errors.UNSUPPORTED_VERSION:
            raise KafkaError(errors.UNSUPPORTED_VERSION, "the controller cannot read a forwarded request")
        if response.error_code or response.response_data is None:
            logger.error("the controller refuses to be forwarded to: %s", KafkaError(response.error_code))
            raise KafkaError(
                errors.UNKNOWN_SERVER_ERROR, "the request could not be forwarded to the controller"
            )
        return bytes(response.response_data)

    async def forward_message(
        self, request: Any, version: int, context: RequestContext, timeout_s: float | None = None
    ) -> Any:
        """Forward a request for the client of `context`, and return the response. Raises KafkaError."""
        frame = codec.encode_request(request, version, 0, context.client_id)
        answer = await self.forward(
            frame, context.principal, context.client_host, by_token=context.by_token, timeout_s=timeout_s
        )
        try:
            _, response = codec.decode_response(codec.response_class(request.API_KEY), version, answer)
        except Malformed as trouble:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, "the controller's answer is damaged") from trouble
        return response

    async def create_topics_in_passing(
        self, names: Iterable[str], config: BrokerConfig, context: RequestContext | None = None
    ) -> dict[str, KafkaError | None]:
        """Return the error, or None, for each topic that did not exist. `config` is BrokerConfig.
        `context`: of the client that needs them, and whose rights count at the controller; None: the broker's
        own."""
        image = self._image()
        wanted = [auto_created(image, config, name) for name in names if name not in image.topics]
        if not wanted:
            return {}
        request = messages.CreateTopicsRequest(topics=wanted, timeout_ms=IN_PASSING_MS)
        timeout_s = IN_PASSING_MS / 1000
        if context is None:
            response = await self._answer(request, timeout_s)
        else:
            response = await self.forward_message(request, IN_PASSING_VERSION, context, timeout_s)
        return {
            result.name: KafkaError(result.error_code, result.error_message)
            if result.error_code not in (errors.NONE, errors.TOPIC_ALREADY_EXISTS)
            else None
            for result in response.topics
        }

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """Return (first, count)."""
        request = messages.AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._epoch())
        try:
            response = await self._answer(request, None)
        except KafkaError as trouble:
            raise _try_again(trouble) from trouble
        if response.error_code:
            raise _try_again(KafkaError(response.error_code))
        if response.producer_id_start < 0 or response.producer_id_len <= 0:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, "the controller gave no producer ids")
        return response.producer_id_start, response.producer_id_len

    async def assign_directories(self, placed: Placed) -> dict[tuple[bytes, int], KafkaError]:
        """Return the partitions that the controller refused, with the reason. It refuses deleted ones,
        too."""
        refused: dict[tuple[bytes, int], KafkaError] = {}
        rest = iter(placed.items())
        while some := dict(islice(rest, ASSIGNMENTS_MAX)):
            response = await self._answer(self._assignment(some), None)
            if response.error_code:
                raise KafkaError(response.error_code, "log directories could not be assigned")
            told = {
                (topic.topic_id, partition.partition_index): partition.error_code
                for directory in response.directories
                for topic in directory.topics
                for partition in topic.partitions
            }
            for each in some:
                code = told.get(each, errors.UNKNOWN_SERVER_ERROR)
                if code:
                    refused[each] = KafkaError(code)
        return refused

    def _assignment(self, placed: Placed) -> Any:
        cls = messages.AssignReplicasToDirsRequest
        by_directory: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, index), directory in placed.items():
            by_directory.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        directory, topic = cls.Directories, cls.Directories.Topics
        return cls(
            broker_id=self._broker_id,
            broker_epoch=self._epoch(),
            directories=[
                directory(
                    id=directory_id,
                    topics=[
                        topic(
                            topic_id=topic_id,
                            partitions=[topic.Partitions(partition_index=index) for index in indexes],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory_id, topics in by_directory.items()
            ],
        )

    async def _answer(self, request: Any, timeout_s: float | None) -> Any:
        """Send a request. Raises KafkaError."""
        try:
            return await self._ask(request, timeout_s=self._timeout_s if timeout_s is None else timeout_s)
        except Unreachable as trouble:
            raise KafkaError(errors.REQUEST_TIMED_OUT, str(trouble)) from trouble


def _try_again(trouble: KafkaError) -> KafkaError:
    """Translate an error as Kafka's RPCProducerIdManager does: clients retry InitProducerId."""
    logger.warning("no producer ids could be had from the controller: %s", trouble)
    return KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS, trouble.message)
