"""The APIs on a controller's listener: the quorum's own requests, the brokers', and the administrators'.

    quorum            Fetch of the metadata log, FetchSnapshot, Vote, BeginQuorumEpoch, EndQuorumEpoch, and
                      changes of the voters: the node answers them, in every role
    members           BrokerRegistration, BrokerHeartbeat, AlterPartition, ...: the active controller
    administrators    as on a broker, directly or in an Envelope (KIP-590, KIP-919)

An Envelope carries a request of a broker's client, with its principal and address. If the request inside
would be answered NOT_CONTROLLER, the whole Envelope is, so that the broker asks the next controller. The
APIs of the quorum answer NOT_LEADER_OR_FOLLOWER in that case."""

import inspect
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from kafkad.api import acls, configs, quorum, sasl, scram, tokens, topics, versions
from kafkad.api.context import ANONYMOUS, RequestContext, Services
from kafkad.api.table import Api
from kafkad.config.dynamic import with_dynamic
from kafkad.controller.quorum_controller import QuorumController
from kafkad.controller.reassignments import ongoing
from kafkad.metadata.image import BROKER
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.raft import describe
from kafkad.raft.quorum_log import not_controller
from kafkad.security.acls import Operation
from kafkad.server.authentication import is_by_token
from kafkad.server.controller_queue import AnsweringController
from kafkad.server.dispatch import Dispatcher
from kafkad.server.early_fencing import EarlyFencing
from kafkad.server.quorum_node import QuorumNode
from kafkad.server.turns import Steps

logger = logging.getLogger(__name__)

CONTROLLERS: Final = 2  # DescribeCluster: endpoint type
API_VERSIONS: Final = 18


class AlwaysApplied:
    """A change is answered without waiting for other workers: brokers learn of it when it is committed."""

    applied = 1 << 62

    async def wait(self, offset: int) -> None:
        """Return at once."""


class MemberAnswers(AnsweringController[QuorumController]):
    """A QuorumController for the handlers: it answers when changes are committed."""

    def _answer(self, steps: Steps, *arguments: Any, **options: Any) -> Any:
        return super()._answer(self._controller.in_term(steps), *arguments, **options)

    def broker_registration(self, request: Any, version: int) -> Any:
        return self._answer(self._controller.broker_registration(request, version))

    def broker_heartbeat(self, request: Any) -> Any:
        self._controller.heard_of(request)
        return self._answer(self._controller.broker_heartbeat(request))

    def unregister_broker(self, request: Any) -> Any:
        return self._answer(self._controller.unregister_broker(request))

    def controller_registration(self, request: Any) -> Any:
        return self._answer(self._controller.controller_registration(request))

    def alter_partition(self, request: Any, version: int) -> Any:
        return self._answer(self._controller.alter_partition(request, version))

    def assign_replicas_to_dirs(self, request: Any) -> Any:
        return self._answer(self._controller.assign_replicas_to_dirs(request))

    def give_producer_ids(self, request: Any) -> Any:
        return self._answer(self._controller.give_producer_ids(request))

    @property
    def is_active(self) -> bool:
        return bool(self._controller.is_active)

    def by_the_clock(self, steps: Steps) -> Any:
        """Run work that no client waits for; its result is available when it is appended."""
        return self._serial.run(self._controller.in_term(steps))


@dataclass(slots=True, kw_only=True)
class ControllerServices(Services):
    """The services for the handlers of a controller's listener."""

    controller: MemberAnswers
    quorum: QuorumNode
    early_fencing: EarlyFencing
    is_controller: bool = True


# -- handlers ----------------------------------------------------------------------------------------------


def raft(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.quorum.handle(request)


def describe_quorum(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    clock = services.clock
    node = services.quorum.node
    return describe.describe_quorum(
        request, context.version, lambda: describe.seen_by(node, clock.monotonic_ms(), clock.now_ms())
    )


def describe_cluster(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    """DescribeCluster (key 60), v1-2: the controllers (KIP-919)."""
    cls = messages.DescribeClusterResponse
    image = services.metadata.image
    if request.endpoint_type != CONTROLLERS:
        return cls(
            error_code=errors.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint"
            " of type BROKER",
        )
    response = cls(
        cluster_id=services.quorum.node.cluster_id,
        endpoint_type=CONTROLLERS,
        error_message=None,
        controller_id=services.quorum.node.leader_and_epoch.leader_id,
    )
    for controller in image.controllers.values():
        endpoint = controller.listeners.get(context.listener)
        if endpoint is not None:
            response.brokers.append(
                cls.Brokers(
                    broker_id=controller.controller_id, host=endpoint.host, port=endpoint.port, rack=None
                )
            )
    return response


def broker_registration(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.broker_registration(request, context.version)


def broker_heartbeat(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    services.early_fencing.heard(context.connection, request)
    return services.controller.broker_heartbeat(request)


def unregister_broker(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.unregister_broker(request)


def controller_registration(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.controller_registration(request)


def alter_partition(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.alter_partition(request, context.version)


def assign_replicas_to_dirs(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.assign_replicas_to_dirs(request)


def allocate_producer_ids(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.give_producer_ids(request)


def alter_partition_reassignments(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.alter_partition_reassignments(request)


def list_partition_reassignments(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    if not services.controller.is_active:
        raise not_controller()
    return ongoing(services.metadata.image, request)


def alter_client_quotas(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    return services.controller.alter_client_quotas(request, context)


def envelope(services: ControllerServices, context: RequestContext, request: Any) -> Any:
    raise AssertionError("the dispatcher opens an Envelope itself")


def describe_configs(services: ControllerServices, context: RequestContext, request: Any) -> Steps:
    """DescribeConfigs (key 32), v1-4, of this node and of what brokers have (KIP-919)."""
    image, config = services.metadata.image, services.config
    own = image.configs.get((BROKER, str(config.node_id)), {})
    config, _ = with_dynamic(config, image.configs.get((BROKER, ""), {}), own)
    return configs.described(image, config, context, request)


# fmt: off
ROWS = (
    Api(1,  "Fetch",                   17, 18, raft),
    Api(17, "SaslHandshake",           0, 1, sasl.sasl_handshake),
    Api(18, "ApiVersions",             0, 4, versions.api_versions),
    Api(19, "CreateTopics",            2, 7, topics.create_topics),
    Api(20, "DeleteTopics",            1, 6, topics.delete_topics),
    Api(29, "DescribeAcls",            1, 3, acls.describe_acls),
    Api(30, "CreateAcls",              1, 3, acls.create_acls),
    Api(31, "DeleteAcls",              1, 3, acls.delete_acls),
    Api(32, "DescribeConfigs",         1, 4, describe_configs),
    Api(33, "AlterConfigs",            0, 2, configs.alter_configs),
    Api(36, "SaslAuthenticate",        0, 2, sasl.sasl_authenticate),
    Api(37, "CreatePartitions",        0, 3, topics.create_partitions),
    Api(38, "CreateDelegationToken",   1, 3, tokens.create_delegation_token),
    Api(39, "RenewDelegationToken",    1, 2, tokens.renew_delegation_token),
    Api(40, "ExpireDelegationToken",   1, 2, tokens.expire_delegation_token),
    Api(43, "ElectLeaders",            0, 2, quorum.elect_leaders),
    Api(44, "IncrementalAlterConfigs", 0, 1, configs.incremental_alter_configs),
    Api(45, "AlterPartitionReassignments", 0, 1, alter_partition_reassignments),
    Api(46, "ListPartitionReassignments", 0, 0, list_partition_reassignments),
    Api(49, "AlterClientQuotas",       0, 1, alter_client_quotas),
    Api(51, "AlterUserScramCredentials", 0, 0, scram.alter_user_scram_credentials),
    Api(52, "Vote",                    0, 2, raft),
    Api(53, "BeginQuorumEpoch",        0, 1, raft),
    Api(54, "EndQuorumEpoch",          0, 1, raft),
    Api(55, "DescribeQuorum",          0, 2, describe_quorum),
    Api(56, "AlterPartition",          2, 3, alter_partition),
    Api(57, "UpdateFeatures",          0, 2, quorum.update_features),
    Api(58, "Envelope",                0, 0, envelope),
    Api(59, "FetchSnapshot",           0, 1, raft),
    Api(60, "DescribeCluster",         1, 2, describe_cluster),
    Api(62, "BrokerRegistration",      0, 4, broker_registration),
    Api(63, "BrokerHeartbeat",         0, 2, broker_heartbeat),
    Api(64, "UnregisterBroker",        0, 0, unregister_broker),
    Api(67, "AllocateProducerIds",     0, 0, allocate_producer_ids),
    Api(70, "ControllerRegistration",  0, 0, controller_registration),
    Api(73, "AssignReplicasToDirs",    0, 0, assign_replicas_to_dirs),
    Api(80, "AddRaftVoter",            0, 1, raft),
    Api(81, "RemoveRaftVoter",         0, 0, raft),
    Api(82, "UpdateRaftVoter",         0, 0, raft),
)
# fmt: on

BY_KEY: Final = {row.key: row for row in ROWS}
TOLD: Final = tuple((row.key, row.low, row.high) for row in ROWS)
FORWARDED: Final = frozenset(
    (19, 20, 29, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81)
)  # in an Envelope
# Kafka refers only DescribeQuorum to the active controller (RequestChannel.shouldReturnNotController)
QUORUM_APIS: Final = frozenset((55, 80, 81))


# -- frames ------------------------------------------------------------------------------------------------


class ControllerDispatcher(Dispatcher):
    """`answer` returns the frame that answers a frame; None: the connection was closed, with a reason."""

    async def answer(self, connection: Any, frame: bytes) -> bytes | None:
        try:
            if self.authentication is not None and self.authentication.takes(connection, frame):
                return bytes(await connection.exchange(self.authentication, frame))
            return await self._answer_of(connection, frame)
        except Exception as trouble:
            self._failed_outside(connection, trouble, "request")
            return None

    async def _answer_of(self, connection: Any, frame: bytes) -> bytes | None:
        key = int.from_bytes(frame[0:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        api = self.table.get(key)
        expires_ms = connection.session_expires_ms
        if expires_ms and self.services.clock.monotonic_ms() > expires_ms:
            connection.close("its session has ended, and it has not logged in anew")
            return None
        if api is None:
            connection.close(f"API key {key} is not served by a controller")
            return None
        if not api.low <= version <= api.high:
            if key == API_VERSIONS and version >= 0:
                return self._older_api_versions(connection, frame)
            connection.close(f"{api.name} version {version} is not served, only {api.low} to {api.high}")
            return None
        try:
            header, request = await self._in_turns(codec.decode_request_in_steps(frame))
        except Malformed as lie:
            connection.close(f"{api.name} v{version} does not parse: {lie}")
            return None
        context = RequestContext(
            api_key=key,
            version=version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=connection.peer_host,
            listener=connection.listener,
            connection=connection,
            principal=connection.principal or ANONYMOUS,
            by_token=is_by_token(connection),
        )
        if type(request) is messages.EnvelopeRequest:
            response = await self._opened(context, request)
        else:
            response = await self._executed(api, context, request)
        if response is None:
            return None
        try:
            return await self._encoded(response, context)
        except (ValueError, TypeError, AttributeError, OverflowError) as trouble:
            self.failures.log(trouble, "a response of %s v%d does not encode", api.name, version)
            return None

    def _older_api_versions(self, connection: Any, frame: bytes) -> bytes | None:
        try:
            header, _ = codec.decode_request_header(frame, 2)
        except Malformed as lie:
            connection.close(f"ApiVersions of an unknown version, and its header does not parse: {lie}")
            return None
        return codec.encode_response(versions.unsupported(self.services), 0, header.correlation_id)

    async def _executed(self, api: Api, context: RequestContext, request: Any) -> Any:
        answer = self._execute(api, context, request)
        return await answer if inspect.isawaitable(answer) else answer

    async def _encoded(self, response: Any, context: RequestContext) -> bytes:
        pieces: list[bytes] = []
        await self._in_turns(
            codec.encode_response_in_steps(response, context.version, context.correlation_id, pieces.append)
        )
        return b"".join(map(bytes, pieces))

    async def _in_turns(self, steps: Steps) -> Any:
        result: Any | Awaitable[Any] = self.turns.run(steps)
        return await result if inspect.isawaitable(result) else result

    # -- Envelope ------------------------------------------------------------------------------------------

    async def _opened(self, context: RequestContext, request: Any) -> Any:
        """EnvelopeResponse (Kafka: EnvelopeUtils). Only who may act for the cluster says who asks."""
        authorizer = self.services.authorizer
        if authorizer is not None:
            subject = authorizer.subject(context.principal, context.client_host)
            if not subject.may_cluster(Operation.CLUSTER_ACTION, "Envelope"):
                return messages.EnvelopeResponse(error_code=errors.CLUSTER_AUTHORIZATION_FAILED)
        try:
            answer = await self._inside(context.connection, request)
        except KafkaError as trouble:
            return messages.EnvelopeResponse(error_code=trouble.code)
        except (AssertionError, MemoryError):
            raise
        except Exception as trouble:  # the connection is that of a broker, for all its clients
            self.failures.log(trouble, "a forwarded request from %s failed", context.client_host)
            return messages.EnvelopeResponse(error_code=errors.UNKNOWN_SERVER_ERROR)
        return messages.EnvelopeResponse(response_data=answer)

    async def _inside(self, connection: Any, request: Any) -> bytes:
        """Return the answer of the inner request, from its header on. Raises KafkaError for the Envelope."""
        frame = bytes(request.request_data)
        principal, by_token = _principal(request.request_principal)
        host = _host(request.client_host_address)
        key = int.from_bytes(frame[0:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        api = self.table.get(key)
        if api is None or key not in FORWARDED:
            raise KafkaError(errors.INVALID_REQUEST, f"API key {key} is not forwarded")
        try:
            header, inner = await self._in_turns(codec.decode_request_in_steps(frame))
        except (Malformed, IndexError) as lie:
            raise KafkaError(errors.UNSUPPORTED_VERSION, str(lie)) from lie
        context = RequestContext(
            api_key=key,
            version=version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=host,
            listener=connection.listener,
            connection=None,
            principal=principal,
            by_token=by_token,
        )
        response = await self._executed(api, context, inner)
        if response is None:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR)
        elsewhere = errors.NOT_LEADER_OR_FOLLOWER if key in QUORUM_APIS else errors.NOT_CONTROLLER
        if await self._in_turns(says(response, elsewhere)):
            raise KafkaError(errors.NOT_CONTROLLER)
        try:
            return await self._encoded(response, context)
        except (ValueError, TypeError, AttributeError, OverflowError) as trouble:
            self.failures.log(trouble, "a forwarded response of %s v%d does not encode", api.name, version)
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR) from trouble


def says(message: Any, code: int) -> Steps:
    """Return whether a response has this error code anywhere, one element of its lists per step."""
    for field in message.SPEC.fields:
        value = getattr(message, field.name)
        if field.name == "error_code" and value == code:
            return True
        if field.struct is not None:
            parts = value if isinstance(value, list) else () if value is None else (value,)
            for part in parts:
                if (yield from says(part, code)):
                    return True
                yield
    return False


def _principal(content: bytes | None) -> tuple[str, bool]:
    """Parse a principal as DefaultKafkaPrincipalBuilder writes it, and whether it logged in by a delegation
    token. Raises KafkaError."""
    try:
        version = int.from_bytes((content or b"")[:2], "big", signed=True)
        if version != 0:
            raise Malformed(f"a principal of version {version}")
        data, _ = codec.decode(messages.DefaultPrincipalData, 0, bytes(content or b"")[2:])
    except Malformed as lie:
        raise KafkaError(errors.PRINCIPAL_DESERIALIZATION_FAILURE, str(lie)) from lie
    return f"{data.type}:{data.name}", data.token_authenticated


def _host(packed: bytes) -> str:
    try:
        return str(ip_address(bytes(packed)))
    except ValueError as lie:
        raise KafkaError(errors.INVALID_REQUEST, f"an address of {len(packed)} bytes") from lie
