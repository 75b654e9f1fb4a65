"""UpdateFeatures: changes the finalized levels of the cluster (KIP-584, KIP-778). A request is applied as a
whole.

This controller, every broker and every other controller must support the new level. kraft.version is changed
by the raft node, last, because it is stored in control records with the voters (KIP-853).

With eligible.leader.replicas.version above 0 (KIP-966) min.insync.replicas must be the same on all brokers:
the update also writes a cluster-wide value, that of the active controller's own configuration, and removes
those of single brokers. It clears what is left from before a downgrade: with level 0 nobody has kept it.

Kafka: FeatureControlManager, ConfigurationControlManager.maybeGenerateElrSafetyRecords."""

from collections.abc import Callable, Generator, Iterable
from itertools import chain
from typing import Any, Final

from kafkad.controller.configs import without_elr
from kafkad.metadata import features
from kafkad.metadata.image import BROKER, MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

Plan = Generator[None, None, tuple[list[Any], Any]]

STEP: Final = 200  # updates before others may run
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
MIN_ISR: Final = "min.insync.replicas"
WITH_RESULTS: Final = 1  # the last version that answers by feature
WITH_UPGRADE_TYPE: Final = 1  # the first version that says more than "allow downgrade"
# Levels of metadata.version that changed the records. A downgrade below one of them would lose data; it may
# cross the other levels (Kafka: MetadataVersion.didMetadataChange).
CHANGED: Final = frozenset((8, 11, 13, 14, 15, 17, 23, 30))


def plan_update(
    image: MetadataImage,
    controller_id: int,
    voters: Iterable[int],
    version: int,
    request: Any,
    upgrade_kraft: Callable[[int], None],
    min_insync_replicas: int,
) -> Plan:
    """Return (records, UpdateFeaturesResponse). `upgrade_kraft(level)` may raise KafkaError
    (INVALID_UPDATE_VERSION). `min_insync_replicas`: of the configuration of this controller."""
    cls = messages.UpdateFeaturesResponse
    records: list[Any] = []
    metadata_version = image.metadata_version  # after this request
    for number, update in enumerate(request.feature_updates, 1):
        if update.feature == features.METADATA_VERSION:
            metadata_version = update.max_version_level
        if number % STEP == 0:
            yield
    for update in chain(
        (each for each in request.feature_updates if each.feature != features.KRAFT_VERSION),
        (each for each in request.feature_updates if each.feature == features.KRAFT_VERSION),
    ):
        yield
        try:
            kind = update.upgrade_type
            if version < WITH_UPGRADE_TYPE:
                kind = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
            level = update.max_version_level
            records += _change(image, controller_id, voters, update.feature, level, kind, metadata_version)
            if update.feature == features.ELIGIBLE_LEADER_REPLICAS_VERSION and level > 0:
                records += _one_min_isr(image, min_insync_replicas)
                if not image.elr_enabled:
                    records += without_elr(image)
            if update.feature == features.KRAFT_VERSION:
                upgrade_kraft(level)
        except KafkaError as trouble:
            message = (
                "The update failed for all features since the following feature had an error: "
                f"{trouble.message}"
            )
            return [], cls(error_code=trouble.code, error_message=message)
    response = cls(error_message=None)
    if version <= WITH_RESULTS:
        for number, update in enumerate(request.feature_updates, 1):
            response.results.append(cls.Results(feature=update.feature, error_message=None))
            if number % STEP == 0:
                yield
    return ([] if request.validate_only else records), response


def _change(
    image: MetadataImage,
    controller_id: int,
    voters: Iterable[int],
    name: str,
    level: int,
    kind: int,
    metadata_version: int,
) -> list[Any]:
    def refused(reason: str) -> KafkaError:
        message = f"Invalid update version {level} for feature {name}. {reason}"
        return KafkaError(errors.INVALID_UPDATE_VERSION, message)

    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise refused("The controller does not support the given upgrade type.")
    is_kraft = name == features.KRAFT_VERSION
    before = image.kraft_version if is_kraft else image.features.get(name, 0)
    if level < 0:
        raise refused("A feature version cannot be less than 0.")
    reason = _not_supported(image, controller_id, voters, name, level)
    if reason is not None:
        raise refused(reason)
    if level < before and kind == UPGRADE:
        raise refused(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    if level > before and kind != UPGRADE:
        raise refused("Can't downgrade to a newer version.")
    if is_kraft:
        if level < before:
            raise refused("Can't downgrade the version of this feature.")
        return []
    lowest = features.ELIGIBLE_LEADER_REPLICAS
    if name == features.ELIGIBLE_LEADER_REPLICAS_VERSION and level > 0 and metadata_version < lowest:
        raise refused(
            f"{name} could not be set to {level} because it depends on {features.METADATA_VERSION} level"
            f" {lowest}"
        )
    is_lost = any(level < changed <= before for changed in CHANGED)
    if name == features.METADATA_VERSION and is_lost:
        raise KafkaError(
            errors.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {before} to {level}. "
            + (
                "Unsafe metadata downgrade is not supported in this version."
                if kind == UNSAFE_DOWNGRADE
                else "Refusing to perform the requested downgrade because it might delete metadata"
                " information."
            ),
        )
    return [messages.FeatureLevelRecord(name=name, feature_level=level)]


def _one_min_isr(image: MetadataImage, static: int) -> list[Any]:
    """Return what makes min.insync.replicas the same on all brokers."""
    record = messages.ConfigRecord
    records = []
    if MIN_ISR not in image.configs.get((BROKER, ""), {}):
        records.append(record(resource_type=BROKER, resource_name="", name=MIN_ISR, value=str(static)))
    for (kind, name), config in image.configs.items():
        if kind == BROKER and name and MIN_ISR in config:
            records.append(record(resource_type=BROKER, resource_name=name, name=MIN_ISR, value=None))
    return records


def _not_supported(
    image: MetadataImage, controller_id: int, voters: Iterable[int], name: str, level: int
) -> str | None:
    ours = features.BY_NAME.get(name)
    nodes = [
        (f"Local controller {controller_id}", (ours.lowest, ours.highest) if ours is not None else (0, 0))
    ]
    nodes += [
        (f"Broker {each.broker_id}", each.features.get(name, (0, 0))) for each in image.brokers.values()
    ]
    nodes += [
        (f"Controller {each.controller_id}", each.features.get(name, (0, 0)))
        for each in image.controllers.values()
        if each.controller_id != controller_id
    ]
    for who, (low, high) in nodes:
        if not low <= level <= high:
            if not high:
                return f"{who} does not support this feature."
            return f"{who} only supports versions {low}-{high}"
    if image.metadata_version >= features.CONTROLLER_REGISTRATION:
        for voter in voters:
            if voter != controller_id and voter not in image.controllers:
                return f"controller {voter} has not registered, and may not support this feature"
    return None
