"""A broker that speaks SASL_SSL to clients, and a delegation token of one of its users."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kafkad.client.connection import Connection
from kafkad.client.security import Security
from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.certificates import make_stores
from tests.jvm import free_port

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OWNER = "anna"


@contextmanager
def token_world(here: Path) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """The options of Spark's readers and writers that log in with the token; and what expires it. Only its
    owner may use the topics."""
    stores = make_stores(here)
    port = free_port()
    jaas = f'{PLAIN} username="admin" password="admin-secret" user_admin="admin-secret"'
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "log.dirs": str(here / "data"),
        "listeners": f"SASL_SSL://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{free_port()}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{jaas} user_{OWNER}="{OWNER}-secret";',
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(stores / "server.pem"),
        "delegation.token.secret.key": "a-hush-hush-secret",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{OWNER}",
        "num.partitions": "2",
    }
    file = here / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    tls = {"security.protocol": "SASL_SSL", "ssl.truststore.type": "PEM"}
    tls["ssl.truststore.location"] = str(stores / "ca.pem")
    with Broker(properties=file) as broker:
        login = f'{PLAIN} username="{OWNER}" password="{OWNER}-secret";'
        owner = {**tls, "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
        connection = Connection("127.0.0.1", port, "owner", security=Security.of(owner))
        made = connection.ask(messages.CreateDelegationTokenRequest(max_lifetime_ms=-1))
        assert made.error_code == 0, made

        def expire() -> None:
            request = messages.ExpireDelegationTokenRequest(hmac=bytes(made.hmac), expiry_time_period_ms=-1)
            assert connection.ask(request).error_code == 0

        secret = base64.b64encode(bytes(made.hmac)).decode()
        login = f'{SCRAM} username="{made.token_id}" password="{secret}" tokenauth="true";'
        options = {**tls, "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login}
        yield (
            {
                "kafka.bootstrap.servers": f"127.0.0.1:{port}",
                **{f"kafka.{name}": text for name, text in options.items()},
            },
            expire,
        )
        connection.close()
        assert secret not in broker.log
