"""What kafkad does with each key: it acts on it, ignores it, or refuses it.

Kafka has more keys than kafkad has parts. A key without a row here is ACTED on: some code reads it, which a
test checks by walking the source. The rows are grouped by the missing part, so the engineer who adds the
part deletes its rows.

    IGNORED   The value cannot change what a client sees. If it is not the default, the start logs one
              warning that names the key.
    REFUSED   The value asks for something that kafkad does not have. The start ends with an error message
              that names the key.

A REFUSED key may still have the values in `allowed`: they ask for what kafkad does anyway. The default is
always allowed, and a key that is not given is neither warned about nor refused.

`config/served.py` applies this table. Keys of the broker, of topics and of groups share it, because keys with
the same name have the same meaning.
"""

from enum import Enum
from typing import Final, NamedTuple


class Effect(Enum):
    ACTED = "acted on"
    IGNORED = "ignored"
    REFUSED = "refused"


class Treatment(NamedTuple):
    effect: Effect
    because: str = ""  # why the key is not acted on, as logged
    allowed: tuple[str, ...] = ()  # REFUSED keys only: allowed values, as text
    instead: str = ""  # REFUSED keys only: what to do


ACTED: Final = Treatment(Effect.ACTED)
# Keys that kafkad acts on per listener: listener.name.<listener>.<key>. They are read at the start
# (security/listeners, security/tls).
PER_LISTENER: Final = frozenset(
    (
        "connections.max.reauth.ms",
        "max.connection.creation.rate",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.principal.mapping.rules",
        "ssl.protocol",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)
# The keys of PER_LISTENER that may change while the listener serves; its stores are then read again.
RELOADED: Final = frozenset(
    key
    for key in PER_LISTENER
    if key.startswith(("ssl.key.", "ssl.keystore.", "ssl.truststore.", "max.connection."))
)
# acted on for one mechanism of one listener, and refused for any other
OAUTH_HANDLER: Final = ".oauthbearer.sasl.server.callback.handler.class"
# how a node of a cluster gets its token for OAUTHBEARER; also per listener, and per listener and mechanism
TOKEN_KEYS: Final = (
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)
OF: Final[dict[str, Treatment]] = {}  # by key
OF_A_CLUSTER: Final[set[str]] = set()  # keys whose row is about a broker that is alone


def _ignored(because: str, keys: str) -> None:
    OF.update(dict.fromkeys(keys.split(), Treatment(Effect.IGNORED, because)))


def _ignored_alone(because: str, keys: str) -> None:
    """By a broker that is its own and only controller; a node of a cluster acts on them."""
    _ignored(because, keys)
    OF_A_CLUSTER.update(keys.split())


def _refused(because: str, instead: str, keys: str, *, allowed: tuple[str, ...] = ()) -> None:
    OF.update(dict.fromkeys(keys.split(), Treatment(Effect.REFUSED, because, allowed, instead)))


# -- security ----------------------------------------------------------------------------------------------

_refused(
    "kafkad cannot load Java classes",
    "use org.apache.kafka.metadata.authorizer.StandardAuthorizer, whose rules it has",
    "authorizer.class.name",
    allowed=("org.apache.kafka.metadata.authorizer.StandardAuthorizer",),
)
_refused(
    "Kafka 4 has no such key",
    "use delegation.token.secret.key",
    "delegation.token.master.key",
)
_refused(
    "kafkad cannot load Java classes",
    "remove the key",
    """
    alter.config.policy.class.name client.quota.callback.class create.topic.policy.class.name
    group.share.persister.class.name principal.builder.class sasl.client.callback.handler.class
    sasl.login.class sasl.oauthbearer.jwt.retriever.class security.providers ssl.engine.factory.class
    """,
)
_refused(
    "kafkad cannot load Java classes",
    "use org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator, or BrokerJwtValidator",
    "sasl.oauthbearer.jwt.validator.class",
    allowed=("org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",),
)
_refused(
    "kafkad cannot load Java classes",
    "use org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler, or remove the key",
    "sasl.login.callback.handler.class",
    allowed=(
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
        "OAuthBearerUnsecuredLoginCallbackHandler",
    ),
)
_refused(
    "kafkad cannot load Java classes, and reads it for OAUTHBEARER of one listener",
    "set listener.name.<listener>.oauthbearer.sasl.server.callback.handler.class",
    "sasl.server.callback.handler.class",
)
_refused(
    "kafkad cannot load Java classes",
    "use org.apache.kafka.common.replica.RackAwareReplicaSelector, or remove the key",
    "replica.selector.class",
    allowed=(
        "org.apache.kafka.common.replica.LeaderSelector",
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    ),
)
_ignored(
    "OpenSSL does the work of Java's providers",
    "ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm",
)
_ignored(
    "it is read for one mechanism of one listener: listener.name.<listener>.<mechanism>.sasl.jaas.config",
    "sasl.jaas.config",
)
_ignored_alone(
    "a broker that is alone logs in nowhere",
    " ".join(("sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol", *TOKEN_KEYS)),
)
_ignored(
    "a node has its Kerberos key from a keytab, and gets a ticket by it when it needs one",
    """
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor
    """,
)
_ignored(
    "a node gets its next token after 80% of the lifetime of the last one",
    """
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    """,
)
_ignored(
    "a node gets its token for a client id and a secret, or from a file",
    """
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file
    """,
)
_ignored(
    "until the ACLs are loaded only listeners of controllers are open, and only to super users",
    "early.start.listeners",
)

# -- quotas and metrics ------------------------------------------------------------------------------------

_ignored(
    "metrics are not exported yet, and kafkad cannot load Java classes",
    """
    kafka.csv.metrics.dir kafka.csv.metrics.reporter.enabled kafka.metrics.polling.interval.secs
    kafka.metrics.reporters metric.reporters metrics.jmx.exclude metrics.jmx.include metrics.num.samples
    metrics.recording.level metrics.sample.window.ms
    """,
)
_ignored(
    "clients are not asked for their metrics yet (KIP-714)", "interval.ms match metrics telemetry.max.bytes"
)

# -- brokers and controllers -------------------------------------------------------------------------------

_refused(
    "new partitions are not kept away from a log directory yet",
    "remove the key",
    "cordoned.log.dirs",
)
_ignored_alone(
    "a broker that is its own controller registers with nobody",
    """
    broker.heartbeat.interval.ms broker.session.timeout.ms controlled.shutdown.enable
    initial.broker.registration.timeout.ms
    """,
)
_ignored(
    "kafkad does not log which events of the controller are slow",
    "controller.performance.always.log.threshold.ms controller.performance.sample.period.ms",
)
_ignored("each request to a controller has its own time-out", "controller.socket.timeout.ms")
_ignored("a start may take as long as the recovery of its logs", "server.max.startup.time.ms")
_ignored_alone(
    "the controller quorum has one voter",
    """
    controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
    controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
    kafkad.failover.on.refused metadata.max.idle.interval.ms
    """,
)
_ignored("metadata is appended at once", "controller.quorum.append.linger.ms")
_ignored(
    "it is for Kafka's own tests",
    """
    internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes
    """,
)
_ignored_alone(
    "there is one broker: partitions have one replica, and it leads them",
    """
    auto.leader.rebalance.enable kafkad.preferred.leader.delay.ms
    leader.imbalance.check.interval.seconds num.replica.fetchers
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
    replica.fetch.response.max.bytes replica.fetch.wait.max.ms replica.lag.time.max.ms
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms
    socket.connection.setup.timeout.ms unclean.leader.election.interval.ms
    """,
)
_ignored_alone(
    "there is one broker: nothing is replicated",
    """
    follower.replication.throttled.rate leader.replication.throttled.rate
    replication.quota.window.num replication.quota.window.size.seconds
    """,
)
_ignored(
    "connections to other brokers are given socket.connection.setup.timeout.ms each time",
    "socket.connection.setup.timeout.max.ms",
)
_ignored(
    "the rate of moves between log directories is kept without windows",
    """
    alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
    """,
)

# -- groups and transactions -------------------------------------------------------------------------------

_refused(
    "only the classic group protocol is supported yet",
    "use classic",
    "group.coordinator.rebalance.protocols",
    allowed=("classic",),
)
_refused(
    "two-phase commit (KIP-939) is not supported yet", "use false", "transaction.two.phase.commit.enable"
)
_ignored(
    "the consumer group protocol (KIP-848) is not supported yet",
    """
    consumer.assignment.interval.ms consumer.heartbeat.interval.ms consumer.session.timeout.ms
    group.consumer.assignment.interval.ms group.consumer.assignors group.consumer.heartbeat.interval.ms
    group.consumer.max.assignment.interval.ms group.consumer.max.heartbeat.interval.ms
    group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.migration.policy
    group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms
    group.consumer.session.timeout.ms
    """,
)
_ignored(
    "share groups are not supported yet",
    """
    group.share.assignment.interval.ms group.share.assignors group.share.delivery.count.limit
    group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
    group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
    group.share.max.share.sessions group.share.max.size group.share.min.assignment.interval.ms
    group.share.min.delivery.count.limit group.share.min.heartbeat.interval.ms
    group.share.min.partition.max.record.locks group.share.min.record.lock.duration.ms
    group.share.min.session.timeout.ms group.share.partition.max.record.locks
    group.share.record.lock.duration.ms group.share.session.timeout.ms share.assignment.interval.ms
    share.auto.offset.reset share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
    share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
    share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
    share.coordinator.state.topic.prune.interval.ms share.coordinator.threads
    share.coordinator.write.timeout.ms share.delivery.count.limit
    share.fetch.purgatory.purge.interval.requests share.heartbeat.interval.ms share.isolation.level
    share.partition.max.record.locks share.record.lock.duration.ms share.renew.acknowledge.enable
    share.session.timeout.ms
    """,
)
_ignored(
    "streams groups (KIP-1071) are not supported yet",
    """
    group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
    group.streams.num.standby.replicas group.streams.session.timeout.ms streams.assignment.interval.ms
    streams.heartbeat.interval.ms streams.initial.rebalance.delay.ms streams.num.standby.replicas
    streams.session.timeout.ms
    """,
)

# -- the log -----------------------------------------------------------------------------------------------

_refused(
    "tiered storage is not supported yet",
    "use false",
    "remote.log.storage.system.enable remote.storage.enable",
)
_ignored(
    "tiered storage is not supported yet",
    """
    follower.fetch.last.tiered.offset.enable local.retention.bytes local.retention.ms
    log.local.retention.bytes log.local.retention.ms remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.copy.disable remote.log.delete.on.disable
    remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
    remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
    remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
    remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
    remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
    remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
    remote.log.reader.threads remote.log.storage.manager.class.name remote.log.storage.manager.class.path
    remote.log.storage.manager.impl.prefix
    """,
)
_ignored("the log cleaner reads in pieces of 512 KiB", "log.cleaner.io.buffer.size")
_ignored("disk space is set aside block by block, ahead of the writes", "log.preallocate preallocate")
_ignored("log start offsets are written when they change", "log.flush.start.offset.checkpoint.interval.ms")
_ignored("periodic tasks begin one interval after the start", "log.initial.task.delay.ms")
_ignored(
    "a broker stays up until the controller has heard of a failed directory", "log.dir.failure.timeout.ms"
)

# -- threads and buffers of the JVM ------------------------------------------------------------------------

_ignored(
    "kafkad has no such threads or buffers; --workers sets how many processes serve",
    """
    background.threads delete.records.purgatory.purge.interval.requests
    fetch.purgatory.purge.interval.requests group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes
    group.coordinator.threads num.io.threads num.network.threads offsets.load.buffer.size
    transaction.state.log.load.buffer.size
    producer.purgatory.purge.interval.requests
    """,
)
_ignored("waiting requests are bounded by queued.max.request.bytes, not by number", "queued.max.requests")
_ignored("offsets are stored uncompressed", "offsets.topic.compression.codec")
_ignored(
    "kafkad has no API versions or feature levels that are not final",
    "unstable.api.versions.enable unstable.feature.versions.enable",
)
