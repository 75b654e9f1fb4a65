"""ApiVersions (key 18), v0-4.   v3 flexible, client software, features (KIP-511, KIP-584). v4 features from
level 0.

The answer has the API table, and the features: those that this broker supports, and those that the cluster
has finalized. Its response header never has tags, because the client does not know yet which versions the
broker supports. `unsupported` answers a request of an unknown version: v0, without reading its body
(KIP-511).
"""

import re
from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.metadata import features
from kafkad.metadata.features import KRAFT_VERSION
from kafkad.protocol import errors, messages

KEY = 18
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(services: Services, context: RequestContext, request: Any) -> Any:
    cls = messages.ApiVersionsResponse
    if context.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return cls(error_code=errors.INVALID_REQUEST)
        if context.connection is not None:
            context.connection.client_software_name = name
            context.connection.client_software_version = version
    image = services.metadata.image
    finalized = dict(image.features)
    if image.kraft_version > 0:
        finalized[KRAFT_VERSION] = image.kraft_version
    return cls(
        api_keys=[
            cls.ApiKeys(api_key=key, min_version=low, max_version=high)
            for key, low, high in services.api_versions
        ],
        # Before v4 some clients could not parse a lowest level of 0 (KAFKA-17492): such features are left
        # out.
        supported_features=[
            cls.SupportedFeatures(name=feature.name, min_version=feature.lowest, max_version=feature.served)
            for feature in features.advertised()
            if context.version >= 4 or feature.lowest > 0
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            cls.FinalizedFeatures(name=name, min_version_level=level, max_version_level=level)
            for name, level in features.finalized(finalized).items()
        ],
    )


def unsupported(services: Services) -> Any:
    """Return the answer to an unknown version, to be encoded at v0: ApiVersions' own range."""
    cls = messages.ApiVersionsResponse
    return cls(
        error_code=errors.UNSUPPORTED_VERSION,
        api_keys=[
            cls.ApiKeys(api_key=key, min_version=low, max_version=high)
            for key, low, high in services.api_versions
            if key == KEY
        ],
    )
