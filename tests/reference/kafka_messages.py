"""Kafka's own message classes as an oracle: `JvmMessages("4.3.1").reread(name, version, data)`.

A JVM with Kafka's jars listens through py4j (which PySpark brings), so nothing is compiled. The bytes go
through the class's `read` and come back from its `write`; what it understood is its JsonConverter's JSON."""

import json
from types import TracebackType
from typing import Any

from py4j import java_gateway, protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tests.jvm import FAST_JVM, jars, java

PACKAGES = (
    "org.apache.kafka.common.message",
    "org.apache.kafka.common.metadata",
    "org.apache.kafka.coordinator.group.generated",
    "org.apache.kafka.coordinator.transaction.generated",
    "org.apache.kafka.coordinator.share.generated",
    "org.apache.kafka.raft.generated",
    "org.apache.kafka.server.log.remote.metadata.storage.generated",
    "org.apache.kafka.storage.internals.log.generated",
    "org.apache.kafka.server.storage.log.generated",
)


class Refused(Exception):
    """The Java class did not take the bytes."""


class JvmMessages:
    def __init__(self, kafka_version: str) -> None:
        # py4j's own jar is found by launch_gateway; Kafka's come as class path
        port, process = launch_gateway(
            classpath=jars(kafka_version),
            java_path=java(),
            javaopts=list(FAST_JVM),
            die_on_exit=True,
            return_proc=True,
        )
        self.process = process
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self.classes: dict[str, str | None] = {}
        # a Spark session of this process has put its own there, which asks Spark about errors
        self.sparks = java_gateway.get_return_value
        java_gateway.get_return_value = protocol.get_return_value

    def close(self) -> None:
        java_gateway.get_return_value = self.sparks
        self.gateway.shutdown()
        self.process.stdin.close()
        self.process.wait(10)

    def __enter__(self) -> "JvmMessages":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def java_class(self, name: str) -> str | None:
        """The full Java name of a message; None where this Kafka has none."""
        if name not in self.classes:
            self.classes[name] = None
            for package in PACKAGES:
                for full in (f"{package}.{name}Data", f"{package}.{name}"):
                    try:
                        self.gateway.jvm.java.lang.Class.forName(full)
                    except Py4JJavaError:
                        continue
                    self.classes[name] = full
        return self.classes[name]

    def new(self, full: str) -> Any:
        return (
            self.gateway.jvm.java.lang.Class.forName(full)
            .getDeclaredConstructor(self.gateway.new_array(self.gateway.jvm.java.lang.Class, 0))
            .newInstance(self.gateway.new_array(self.gateway.jvm.java.lang.Object, 0))
        )

    def versions(self, name: str) -> range:
        """Those that its class has; empty when there is no class."""
        full = self.java_class(name)
        if full is None:
            return range(0)
        message = self.new(full)
        return range(message.lowestSupportedVersion(), message.highestSupportedVersion() + 1)

    def reread(self, name: str, version: int, data: bytes) -> tuple[dict[str, Any], bytes, int]:
        """(what the class read, as JSON; what it writes; bytes left over). Raises Refused."""
        full = self.java_class(name)
        assert full is not None
        jvm = self.gateway.jvm
        incoming = jvm.java.nio.ByteBuffer.wrap(data)
        message = self.new(full)
        try:
            message.read(jvm.org.apache.kafka.common.protocol.ByteBufferAccessor(incoming), version)
        except Py4JJavaError as error:
            raise Refused(str(error.java_exception)) from error
        return *self.say(full, message, version), incoming.remaining()

    def default(self, name: str, version: int) -> tuple[dict[str, Any], bytes]:
        """(JSON, bytes) of a new object."""
        full = self.java_class(name)
        assert full is not None
        return self.say(full, self.new(full), version)

    def say(self, full: str, message: Any, version: int) -> tuple[dict[str, Any], bytes]:
        jvm = self.gateway.jvm
        prefixed = jvm.org.apache.kafka.common.protocol.MessageUtil.toVersionPrefixedBytes(version, message)
        converter = getattr(jvm, f"{full}JsonConverter")
        return json.loads(converter.write(message, version).toString()), prefixed[2:]
