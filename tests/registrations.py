"""BrokerRegistration as brokers send it, for tests of controllers."""

from kafkad.metadata import features
from kafkad.protocol import messages

CLUSTER = "cluster"


def directory_of(broker_id, number=0):
    return bytes([100 + broker_id]) * 15 + bytes([number])


def registration(broker_id, incarnation, **fields):
    cls = messages.BrokerRegistrationRequest
    fields.setdefault("log_dirs", [directory_of(broker_id)])
    fields.setdefault("rack", None)
    return cls(
        broker_id=broker_id,
        cluster_id=CLUSTER,
        incarnation_id=bytes([incarnation]) * 16,
        listeners=[cls.Listeners(name="PLAINTEXT", host=f"broker-{broker_id}", port=9092)],
        features=[
            cls.Features(
                name=each.name, min_supported_version=each.lowest, max_supported_version=each.highest
            )
            for each in features.SUPPORTED
        ],
        **fields,
    )
