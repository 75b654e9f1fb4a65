"""Administrative requests of tests/differential_requests.py: cluster, topics, configurations, ACLs."""

from typing import Any

from kafkad.protocol import messages
from tests.differential import Request, Side, edges
from tests.differential_choices import BROKER, INT16, INT32, TOPIC, TOPICS, Choices


class AdminRequests(Choices):
    """Adds requests about the cluster and its topics."""

    # -- the cluster

    def metadata(self) -> Request:
        rng = self.rng
        version = self.version(3)
        cls = messages.MetadataRequest
        if rng.random() < 0.3:
            topics: Any = None if version >= 1 else []
        else:
            topics = []
            for name in self.some(self.topic):
                by_id = version >= 12 and rng.random() < 0.5
                topics.append(
                    cls.Topics(
                        name=None if by_id else name, topic_id=self.topic_id(name) if by_id else bytes(16)
                    )
                )
        return Request(
            cls(
                topics=topics,
                allow_auto_topic_creation=rng.random() < 0.5,
                include_cluster_authorized_operations=8 <= version <= 10 and rng.random() < 0.5,
                include_topic_authorized_operations=version >= 8 and rng.random() < 0.5,
            ),
            version,
        )

    def describe_topic_partitions(self) -> Request:
        cls = messages.DescribeTopicPartitionsRequest
        cursor = None
        if self.rng.random() < 0.4:
            name = self.topic()
            cursor = cls.Cursor(topic_name=name, partition_index=edges(self.rng, 0, 1, rare=(-1, 50)))
        return Request(
            cls(
                topics=[cls.Topics(name=name) for name in self.some(self.topic)],
                response_partition_limit=edges(self.rng, 2000, 1, 2, rare=(0, -1, INT32 - 1)),
                cursor=cursor,
            ),
            0,
        )

    def describe_cluster(self) -> Request:
        message = messages.DescribeClusterRequest(
            include_cluster_authorized_operations=self.rng.random() < 0.5,
            endpoint_type=edges(self.rng, 1, rare=(2, 0, 9)),
            include_fenced_brokers=self.rng.random() < 0.5,
        )
        return Request(message, self.version(60))

    def elect_leaders(self) -> Request:
        cls, rng = messages.ElectLeadersRequest, self.rng
        partitions = [
            cls.TopicPartitions(topic=name, partitions=self.some(lambda name=name: self.partition(name)))
            for name in self.some(self.topic)
        ]
        message = cls(
            election_type=edges(rng, 0, 1, rare=(2, -1)),
            topic_partitions=None if rng.random() < 0.3 else partitions,
            timeout_ms=10_000,
        )
        return Request(message, self.version(43))

    def describe_quorum(self) -> Request:
        cls, rng = messages.DescribeQuorumRequest, self.rng
        topics = [
            cls.Topics(
                topic_name=edges(rng, "__cluster_metadata", "__cluster_metadata", rare=("", "t0")),
                partitions=[
                    cls.Topics.Partitions(partition_index=edges(rng, 0, 0, 0, rare=(1, -1)))
                    for _ in range(edges(rng, 1, 1, rare=(0, 2)))
                ],
            )
            for _ in range(edges(rng, 1, 1, 1, rare=(0, 2)))
        ]
        return Request(cls(topics=topics), self.version(55))

    def update_features(self) -> Request:
        """One feature, and levels that both have: Kafka finalizes others as well."""
        cls, rng = messages.UpdateFeaturesRequest, self.rng
        name, level = rng.choice(
            [("transaction.version", level) for level in (0, 1, 2, 3, -1)]
            + [("metadata.version", level) for level in (30, 29, 24, 6, 31, 0)]
            + [("eligible.leader.replicas.version", 2), ("no.such", 1), ("", 1)]
        )
        update = cls.FeatureUpdates(
            feature=name, max_version_level=level, allow_downgrade=rng.random() < 0.5,
            upgrade_type=edges(rng, 1, 2, rare=(3, 0, 4)),
        )  # fmt: skip
        message = cls(timeout_ms=10_000, feature_updates=[update], validate_only=True)
        return Request(message, max(1, self.version(57)))

    def api_versions(self) -> Request:
        message = messages.ApiVersionsRequest(
            client_software_name=edges(self.rng, "c", "a-b.c", rare=("", "é", "-", "a b")),
            client_software_version=edges(self.rng, "1", "1.0-x", rare=("", " ")),
        )
        return Request(message, self.version(18))

    def sasl_handshake(self) -> Request:
        return Request(
            messages.SaslHandshakeRequest(mechanism=self.rng.choice(("PLAIN", "", "X"))), self.version(17)
        )

    def sasl_authenticate(self) -> Request:
        token = self.rng.choice((b"", b"\0a\0b"))
        return Request(messages.SaslAuthenticateRequest(auth_bytes=token), self.version(36))

    def scram_described(self) -> Request:
        user = messages.DescribeUserScramCredentialsRequest.Users(
            name=self.rng.choice(("u", "v", "", "nobody"))
        )
        return Request(
            messages.DescribeUserScramCredentialsRequest(users=[user] * edges(self.rng, 1, rare=(2, 3))), 0
        )

    def scram_altered(self) -> Request:
        """Of one user: a HashMap gives the order of several."""
        rng, cls = self.rng, messages.AlterUserScramCredentialsRequest
        name = edges(rng, "u", "v", rare=("", "é", "x" * 300))
        mechanism = edges(rng, 1, 2, rare=(0, 3, -1))
        gone = [cls.Deletions(name=name, mechanism=mechanism) for _ in range(edges(rng, 0, 1, rare=(2,)))]
        new = [
            cls.Upsertions(
                name=name,
                mechanism=mechanism,
                iterations=edges(rng, 4096, 16384, rare=(0, 4095, 16385, -1)),
                salt=edges(rng, b"salt", rare=(b"",)),
                salted_password=edges(rng, b"p" * 32, rare=(b"p", b"p" * 64)),
            )
            for _ in range(edges(rng, 1, 0, rare=(2,)))
        ]
        return Request(cls(deletions=gone, upsertions=new), 0, changes="configs")

    def acls_described(self) -> Request:
        return Request(messages.DescribeAclsRequest(**self.acl_filter()), self.version(29))

    def acls_created(self) -> Request:
        """There is no authorizer: only the number 0 (UNKNOWN) is told from the others."""
        rng, cls = self.rng, messages.CreateAclsRequest
        new = [
            cls.Creations(
                resource_type=edges(rng, 2, 3, rare=(0, 1, 9)),
                resource_name=rng.choice(("t", "", "*")),
                resource_pattern_type=edges(rng, 3, 4, rare=(0, 1, 2, 9)),
                principal=rng.choice(("User:u", "u")),
                host="*",
                operation=edges(rng, 3, 2, rare=(0, 1, 99)),
                permission_type=edges(rng, 2, 3, rare=(0, 1, 9)),
            )
            for _ in range(edges(rng, 1, 2, rare=(0,)))
        ]
        return Request(cls(creations=new), self.version(30))

    def acls_deleted(self) -> Request:
        filters = [
            messages.DeleteAclsRequest.Filters(**self.acl_filter())
            for _ in range(edges(self.rng, 1, 2, rare=(0,)))
        ]
        return Request(messages.DeleteAclsRequest(filters=filters), self.version(31))

    def acl_filter(self) -> dict[str, Any]:
        rng = self.rng
        return {
            "resource_type_filter": edges(rng, 1, 2, rare=(0, 9)),
            "resource_name_filter": rng.choice(("t", None, "")),
            "pattern_type_filter": edges(rng, 1, 3, rare=(0, 2, 4, 9)),
            "principal_filter": rng.choice(("User:u", None)),
            "host_filter": rng.choice(("*", None)),
            "operation": edges(rng, 1, 3, rare=(0, 99)),
            "permission_type": edges(rng, 1, 3, rare=(0, 9)),
        }

    def find_coordinator(self) -> Request:
        message = messages.FindCoordinatorRequest(
            key=self.group(),
            key_type=edges(self.rng, 0, rare=(2, 9, -1)),
            coordinator_keys=self.some(self.group),
        )
        return Request(message, self.version(10))

    # -- topics and configurations

    def creatable(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> Any:
        cls = messages.CreateTopicsRequest.Topics
        rows = [cls.Configs(name=key, value=value) for key, value in (configs or {}).items()]
        return cls(name=name, num_partitions=partitions, replication_factor=1, configs=rows)

    def create_topics(self) -> Request:
        rng = self.rng
        cls = messages.CreateTopicsRequest.Topics
        validate = rng.random() < 0.3
        topics = []
        for name in self.some(
            lambda: edges(rng, *TOPICS, *TOPICS, rare=("", "..", "a b", "x" * 250, "é", "new.dots"))
        ):
            partitions = edges(rng, 1, 2, 3, -1, rare=(0, -2))
            factor = edges(rng, 1, -1, rare=(0, 2, -2, INT16 - 1))
            made = self.creatable(
                name,
                partitions,
                edges(
                    rng, {}, {}, {"retention.ms": "86400000"},
                    rare=({"no.such": "1"}, {"retention.ms": "x"}, {"cleanup.policy": "shrink"}),
                ),
            )  # fmt: skip
            made.replication_factor = factor
            if rng.random() < 0.1:
                made.num_partitions = made.replication_factor = -1
                made.assignments = [
                    cls.Assignments(partition_index=index, broker_ids=ids)
                    for index, ids in rng.choice((
                        [(0, [1])], [(0, [1]), (1, [1])], [(0, [1, 1])], [(0, [])], [(0, [9])], [(1, [1])],
                    [(0, [1]), (0, [1])], ))
                ]  # fmt: skip
            topics.append(made)
            if not validate and name in TOPICS and name not in self.partitions:
                self.partitions[name] = max(len(made.assignments), made.num_partitions, 1)
        message = messages.CreateTopicsRequest(topics=topics, timeout_ms=10000, validate_only=validate)
        return Request(message, self.version(19), changes="topics", capture=self.learn_created)

    def learn_created(self, side: Side, response: Any) -> None:
        for topic in response.topics:
            if topic.error_code == 0 and topic.topic_id != bytes(16):
                side.learn("topic", topic.name, topic.topic_id)

    def delete_topics(self) -> Request:
        rng = self.rng
        version = self.version(20)
        names = self.some(lambda: edges(rng, *TOPICS, rare=("missing", "", "a b")), 2)
        cls = messages.DeleteTopicsRequest
        topics = []
        for name in names:
            by_id = rng.random() < 0.5
            topics.append(
                cls.Topics(name=None if by_id else name, topic_id=self.topic_id(name) if by_id else bytes(16))
            )
            self.forget(name)
        return Request(cls(topics=topics, topic_names=names, timeout_ms=10000), version, changes="topics")

    def forget(self, name: str) -> None:
        self.partitions.pop(name, None)
        for place in [each for each in self.next_offset if each[0] == name]:
            del self.next_offset[place]
        for key in [each for each in self.sequences if each[1] == name]:
            del self.sequences[key]

    def create_partitions(self) -> Request:
        rng = self.rng
        cls = messages.CreatePartitionsRequest
        topics = []
        for name in self.some(self.topic, 2):
            count = self.partitions.get(name, 1)
            wanted = edges(rng, min(count + 1, 5), rare=(count, 0, -1, count - 1))
            assignments = None
            if rng.random() < 0.2:
                assignments = [
                    cls.Topics.Assignments(broker_ids=ids)
                    for ids in rng.choice(([[1]], [[9]], [[]], [[1], [1]]))
                ]
            topics.append(cls.Topics(name=name, count=wanted, assignments=assignments))
        return Request(
            cls(topics=topics, timeout_ms=10000, validate_only=rng.random() < 0.5),
            self.version(37),
            changes="topics",
        )

    CONFIGS = (
        ("retention.ms", "86400000"), ("retention.ms", "x"), ("retention.ms", None), ("segment.bytes",
        "1048576"),
        ("segment.bytes", "1"), ("no.such", "1"), ("max.message.bytes", "1000000"), ("min.insync.replicas",
        "1"),
        ("min.insync.replicas", "0"), ("message.timestamp.type", "NoTime"), ("compression.type", "gzip"),
        ("compression.type", "none"), ("cleanup.policy", "delete"), ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"), ("cleanup.policy", ""), ("cleanup.policy", None),
        ("min.insync.replicas", "2"), ("retention.ms", "-1"), ("retention.ms", "-2"), ("retention.ms", ""),
        ("max.message.bytes", " 2000 "), ("max.message.bytes", "1e3"), ("flush.ms", "0x10"),
        ("unclean.leader.election.enable", "TRUE"), ("unclean.leader.election.enable", "yes"),
        ("min.cleanable.dirty.ratio", "0.5"), ("min.cleanable.dirty.ratio", "1.5"),
        ("leader.replication.throttled.replicas", "0:1"),
    )  # fmt: skip

    def resource(self) -> tuple[int, str]:
        return edges(
            self.rng,
            (TOPIC, self.topic()),
            rare=((TOPIC, ""), (99, "x"), (0, ""), (BROKER, "77"), (BROKER, "x")),
        )

    def alter_configs(self) -> Request:
        cls = messages.AlterConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configs=[cls.Resources.Configs(name=key, value=value) for key, value in self.configs()],
            )
            for kind, name in self.some(self.resource, 2)
        ]
        return Request(
            cls(resources=resources, validate_only=self.rng.random() < 0.7),
            self.version(33),
            changes="configs",
        )

    def incremental_alter_configs(self) -> Request:
        cls = messages.IncrementalAlterConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configs=[
                    cls.Resources.Configs(
                        name=key,
                        value=value,
                        config_operation=edges(self.rng, 0, 0, 1, 2, 3, rare=(9, -1)),
                    )
                    for key, value in self.configs()
                ],
            )
            for kind, name in self.some(self.resource, 2)
        ]
        if any(row.config_operation not in range(4) for each in resources for row in each.configs):
            resources = resources[:1]  # Kafka fails all resources of such a request
        return Request(
            cls(resources=resources, validate_only=self.rng.random() < 0.5),
            self.version(44),
            changes="configs",
        )

    def described(self, resources: list[Any]) -> Request:
        """What a change of configurations has left."""
        cls = messages.DescribeConfigsRequest
        asked = [
            cls.Resources(resource_type=each.resource_type, resource_name=each.resource_name)
            for each in resources
            if each.resource_type == TOPIC
        ]
        for each in asked:
            each.configuration_keys = None
        return Request(cls(resources=asked, include_synonyms=True), self.version(32))

    def configs(self) -> list[tuple[str, str | None]]:
        lists = [row for row in self.CONFIGS if row[0] == "cleanup.policy"]
        rows = lists if self.rng.random() < 0.3 else self.CONFIGS
        return self.rng.sample(rows, self.rng.choice((0, 1, 1, 2)))

    def describe_configs(self) -> Request:
        cls = messages.DescribeConfigsRequest
        resources = [
            cls.Resources(
                resource_type=kind,
                resource_name=name,
                configuration_keys=edges(
                    self.rng, None, ["retention.ms"], rare=([], ["no.such", "segment.bytes"])
                ),
            )
            for kind, name in self.some(self.resource, 2)
        ]
        return Request(
            cls(resources=resources, include_synonyms=self.rng.random() < 0.5, include_documentation=False),
            self.version(32),
        )

    def list_config_resources(self) -> Request:
        kinds = edges(self.rng, [TOPIC], [BROKER], [TOPIC, BROKER], rare=([], [99], [0]))
        return Request(messages.ListConfigResourcesRequest(resource_types=kinds), self.version(74))

    def describe_log_dirs(self) -> Request:
        cls = messages.DescribeLogDirsRequest.Topics
        topics = [
            cls(topic=name, partitions=self.some(lambda name=name: self.partition(name)))
            for name in self.some(self.existing)
        ]
        return Request(messages.DescribeLogDirsRequest(topics=topics), self.version(35))
