"""The brokers of `pytest --secured`: kafkad and JVM Kafka behind TLS, SCRAM and ACLs.

Both have the same settings. The only listener for clients is SASL_SSL, and so is the controller's. The user
of the tests is no super user, and everything that no ACL allows is refused; RIGHTS are the ACLs that the
tests of clients need. The first start of a broker makes the user and its ACLs.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafkad.testing import Broker
from tests.certificates import make_stores
from tests.clients import WAIT_S, wait_until
from tests.jvm import TEST_CONFIG, JvmKafka, free_port
from tests.logins import SCRAM_MODULE, Login

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
Rights = dict[tuple[ResourceType, str], tuple[AclOperation, ...]]

USER, PASSWORD = "tester", "tester-secret"
ADMIN_PASSWORD = "admin-secret"
# by kind and name of the resource; nothing that is only for brokers, and no ACLs, users or tokens
RIGHTS: Rights = {
    (ResourceType.TOPIC, "*"): (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    (ResourceType.GROUP, "*"): (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE),
    (ResourceType.TRANSACTIONAL_ID, "*"): (AclOperation.WRITE, AclOperation.DESCRIBE),
    (ResourceType.BROKER, "kafka-cluster"): (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS),
}


@functools.cache
def stores() -> Path:
    """Make the certificates once for each process of the tests."""
    directory = Path(tempfile.mkdtemp(prefix="kafkad-stores-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return make_stores(directory)


def security(address: str, controller: str) -> dict[str, str]:
    """Return the settings of a node's listeners, logins and authorizer."""
    jaas = f'{PLAIN_MODULE} username="admin" password="{ADMIN_PASSWORD}" user_admin="{ADMIN_PASSWORD}";'
    return {
        "listeners": f"SASL_SSL://{address},CONTROLLER://{controller}",
        "advertised.listeners": f"SASL_SSL://{address},CONTROLLER://{controller}",
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL",
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE};",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(stores() / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(stores() / "ca.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:admin",
    }


def guarded(kind: str, data_dir: Path, config: dict[str, object], workers: int | None = None) -> Any:
    """Return a broker of this kind, kafkad or jvm, which is not started."""
    if kind == "jvm":
        return GuardedJvm(data_dir, config=config)
    return GuardedBroker(data_dir, config, workers)


class GuardedBroker(Broker):
    """kafkad, by a server.properties file."""

    def __init__(self, data_dir: Path, config: dict[str, object], workers: int | None = None) -> None:
        port, controller = free_port(), f"127.0.0.1:{free_port()}"
        file = data_dir.with_name(data_dir.name + ".properties")
        file.parent.mkdir(parents=True, exist_ok=True)
        node = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
        }
        write(file, {**node, **security(f"127.0.0.1:{port}", controller), **TEST_CONFIG})
        super().__init__(workers, config, data_dir, properties=file)
        self.login: Login | None = None

    def start(self) -> GuardedBroker:
        super().start()
        if self.login is None:
            self.login = add_user(self)
        return self


class GuardedJvm(JvmKafka):
    def __init__(self, data_dir: Path, **how: Any) -> None:
        super().__init__(data_dir, **how)
        controller = self.config["listeners"].partition("CONTROLLER://")[2]
        self.config |= security(self.bootstrap, controller)
        write(self.properties, self.config)
        self.login: Login | None = None

    def until_ready(self, timeout: float = 60) -> GuardedJvm:
        super().until_ready(timeout)
        if self.login is None:
            self.login = add_user(self)
        return self


def write(file: Path, properties: dict[str, str]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def admin_of(broker: Any) -> AdminClient:
    """Return a client of the super user."""
    return AdminClient(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": ADMIN_PASSWORD,
            "ssl.ca.location": str(stores() / "ca.pem"),
        }
    )


def add_user(broker: Any, user: str = USER, password: str = PASSWORD, allowed: Rights = RIGHTS) -> Login:
    """Make a user and its ACLs, those of the tests by default. Return when the broker knows them."""
    admin = admin_of(broker)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        wanted = [UserScramCredentialUpsertion(user, info, password.encode())]
        admin.alter_user_scram_credentials(wanted)[user].result(WAIT_S)
    rights = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )
        for (kind, name), operations in allowed.items()
        for operation in operations
    ]
    for made in admin.create_acls(rights).values() if rights else ():
        made.result(WAIT_S)
    # Kafka answers when its controller has them; its broker applies them later, after the user
    wait_until(lambda: set(acls_of(admin)) >= set(rights))
    return Login(user, password, stores() / "ca.pem")


def acls_of(admin: AdminClient) -> list[AclBinding]:
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return admin.describe_acls(everything).result(WAIT_S)


def security_of(broker: Any) -> dict[str, Any]:
    """Return all ACLs, and the SCRAM credentials of all users, as far as a broker tells them."""
    admin = admin_of(broker)
    users = admin.describe_user_scram_credentials().result(WAIT_S)
    return {
        "acls": sorted(map(str, acls_of(admin))),
        "users": {
            name: sorted((str(each.mechanism), each.iterations) for each in told.scram_credential_infos)
            for name, told in users.items()
        },
    }
