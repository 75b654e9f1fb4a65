"""Applies the broker configurations of the metadata log to a worker.

`adopt` takes a whole configuration. A committed value stays in the log: if one that cannot be applied raised
out of here, it would end every worker, now and at each start. So it is logged and left out, and the other
values count."""

import logging
from collections.abc import Callable

from kafkad.config.broker import BrokerConfig
from kafkad.config.dynamic import one_by_one, with_dynamic
from kafkad.metadata.image import BROKER, MetadataImage

logger = logging.getLogger("kafkad")


class DynamicConfiguration:
    def __init__(self, adopt: Callable[[BrokerConfig], None], *, complains: bool) -> None:
        """`complains`: log values that are not valid. One worker does, because all have the same."""
        self._adopt = adopt
        self._complains = complains
        self._complaints: list[str] = []  # about the configuration last applied

    def apply(self, before: BrokerConfig, image: MetadataImage) -> None:
        """Replace the dynamic values of `before` with those of `image`."""
        own = str(before.node_id)
        config, complaints = with_dynamic(
            before, image.configs.get((BROKER, ""), {}), image.configs.get((BROKER, own), {})
        )
        for complaint in complaints:
            if complaint not in self._complaints and self._complains:
                logger.warning("%s", complaint)
        self._complaints = complaints
        try:
            self._adopt(config)
        except Exception as trouble:
            logger.error("a change of the dynamic configuration failed: %r", trouble)
            layers = (config.dynamic_default, config.dynamic_broker)
            config, left_out = one_by_one(before, layers, self._adopt)
            for complaint in left_out:
                logger.error("%s", complaint)
            self._adopt(config)
