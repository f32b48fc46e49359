"""ApiVersions (key 18), versions 0 to 4: what this gateway serves, from the one table of `kshare_wire.api_versions`.

Version 5 and unknown ones are answered in version 0 with UNSUPPORTED_VERSION and the versions of ApiVersions itself
(KIP-511), so that the client can ask again; the connection does that. Features: see `FEATURES`. The client's software
name and version are not checked.

Produce is announced from version 0 on, as by Kafka: librdkafka before 2.11 takes a least version of 3 for a broker that
knows no compression (KAFKA-18659). Versions below the table's close the connection, there and here.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_wire.api_versions import FEATURES, FINALIZED_FEATURES_EPOCH, SUPPORTED_VERSIONS, ApiKey
from kshare_wire.messages import Body, Message

_ANNOUNCED_MINIMUMS = {ApiKey.PRODUCE: 0}
_API_KEYS = [
    {
        "api_key": key,
        "min_version": _ANNOUNCED_MINIMUMS.get(key, versions.minimum),
        "max_version": versions.maximum,
    }
    for key, versions in sorted(SUPPORTED_VERSIONS.items())
]
_ORDINARY_BODY: Body = {
    "api_keys": _API_KEYS,
    "supported_features": [
        {"name": feature.name, "min_version": feature.minimum, "max_version": feature.maximum} for feature in FEATURES
    ],
    "finalized_features_epoch": FINALIZED_FEATURES_EPOCH,
    "finalized_features": [
        {"name": feature.name, "min_version_level": feature.finalized, "max_version_level": feature.finalized}
        for feature in FEATURES
    ],
}
# Clients before version 4 cannot parse a feature whose least version is 0 (KAFKA-17011), so they are told 1.
_OLD_BODY: Body = {
    **_ORDINARY_BODY,
    "supported_features": [
        {"name": feature.name, "min_version": max(1, feature.minimum), "max_version": feature.maximum}
        for feature in FEATURES
    ],
}


def answer_now(context: RequestContext, request: Message) -> Body:
    return _ORDINARY_BODY if context.version >= 4 else _OLD_BODY


def unsupported_version_body() -> Body:
    """The answer, in version 0, to a version that is not served."""
    own = [entry for entry in _API_KEYS if entry["api_key"] is ApiKey.API_VERSIONS]
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": own}
