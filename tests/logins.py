"""What a client of each kind needs to connect to a broker of the tests: its address and, if the broker has a
`login` (`pytest --secured`), the user, the password and the authority.

A broker without a login is spoken to in plain text. librdkafka, kafka-python and kafkad's client log in by
SCRAM-SHA-512, Java's clients and aiokafka by SCRAM-SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkad.client.cluster import Cluster
from kafkad.client.security import Security

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
# Kafka's tools name the option for a file of client settings differently; 4.2 gave all of them one name
COMMAND_CONFIG = "--command-config"
OPTIONS_3 = {
    "kafka-cluster": "--config",
    "kafka-console-consumer": "--consumer.config",
    "kafka-console-producer": "--producer.config",
    "kafka-consumer-perf-test": "--consumer.config",
    "kafka-producer-perf-test": "--producer.config",
    "kafka-verifiable-consumer": "--consumer.config",
    "kafka-verifiable-producer": "--producer.config",
}


@dataclass(frozen=True)
class Login:
    """A user with a password of both SCRAM mechanisms, and the PEM file of the authority."""

    user: str
    password: str
    authority: Path


def login_of(broker: Any) -> Login | None:
    return getattr(broker, "login", None)


def librdkafka(broker: Any) -> dict[str, Any]:
    """Return the settings for confluent-kafka."""
    address = {"bootstrap.servers": broker.bootstrap}
    login = login_of(broker)
    if login is None:
        return address
    return {
        **address,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": login.user,
        "sasl.password": login.password,
        "ssl.ca.location": str(login.authority),
    }


def java(broker: Any) -> dict[str, str]:
    """Return the settings for a client in Java."""
    address = {"bootstrap.servers": broker.bootstrap}
    login = login_of(broker)
    if login is None:
        return address
    return {
        **address,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{SCRAM_MODULE} username="{login.user}" password="{login.password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(login.authority),
    }


def java_file(broker: Any) -> Path | None:
    """Write the settings for a client in Java to a file; None if it needs only the address."""
    login = login_of(broker)
    if login is None:
        return None
    path = login.authority.with_name(f"{login.user}-{broker.port}.properties")
    path.write_text("".join(f"{key}={value}\n" for key, value in java(broker).items()))
    return path


def tool_options(broker: Any, version: str, tool: str) -> tuple[object, ...]:
    """Return the arguments that give one of Kafka's tools the settings."""
    path = java_file(broker)
    if path is None:
        return ()
    option = OPTIONS_3.get(tool, COMMAND_CONFIG) if version.startswith("3.") else COMMAND_CONFIG
    return option, path


def spark(broker: Any) -> dict[str, str]:
    """Return the options for Spark's connector and for kafkad's."""
    return {f"kafka.{key}": value for key, value in java(broker).items()}


def kafka_python(broker: Any) -> dict[str, Any]:
    address = {"bootstrap_servers": broker.bootstrap}
    login = login_of(broker)
    if login is None:
        return address
    return {
        **address,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
        "ssl_cafile": str(login.authority),
    }


def aiokafka(broker: Any) -> dict[str, Any]:
    from aiokafka.helpers import create_ssl_context

    address = {"bootstrap_servers": broker.bootstrap}
    login = login_of(broker)
    if login is None:
        return address
    return {
        **address,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
        "ssl_context": create_ssl_context(cafile=str(login.authority)),
    }


def cluster(broker: Any, **more: Any) -> Cluster:
    """Return kafkad's own client."""
    return Cluster(broker.bootstrap, security=Security.of(librdkafka(broker)), **more)
