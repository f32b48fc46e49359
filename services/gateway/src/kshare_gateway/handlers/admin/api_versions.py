"""ApiVersions (key 18), versions 0 to 4: what this gateway serves, as the handlers registered it.

Version 5 and unknown ones are answered in version 0 with UNSUPPORTED_VERSION and the versions of ApiVersions itself
(KIP-511), so that the client can ask again; the connection does that. Features: see `FEATURES`. From version 3 on, a
software name or version that KIP-511 does not allow is INVALID_REQUEST (ApiVersionsRequest.isValid).

Produce is announced from version 0 on, as by Kafka: librdkafka before 2.11 takes a least version of 3 for a broker that
knows no compression (KAFKA-18659). Versions below the registered ones close the connection, there and here.
"""

from __future__ import annotations

import functools
import re

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import REGISTERED, serve
from kshare_wire.api_versions import FEATURES, FINALIZED_FEATURES_EPOCH, VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.responses.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FIRST_VERSION_WITH_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ANNOUNCED_MINIMUMS = {ApiKey.PRODUCE: 0}


@functools.cache
def _api_keys() -> list[ApiVersion]:
    """All APIs, once the handlers are loaded."""
    return [
        ApiVersion(
            api_key=key,
            min_version=_ANNOUNCED_MINIMUMS.get(key, served.versions.minimum),
            max_version=served.versions.maximum,
        )
        for key, served in sorted(REGISTERED.items())
    ]


@functools.cache
def _body(least_feature_level: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=_api_keys(),
        supported_features=[
            SupportedFeatureKey(
                name=feature.name,
                min_version=max(least_feature_level, feature.minimum),
                max_version=feature.maximum,
            )
            for feature in FEATURES
        ],
        finalized_features_epoch=FINALIZED_FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(
                name=feature.name, min_version_level=feature.finalized, max_version_level=feature.finalized
            )
            for feature in FEATURES
        ],
    )


def refusal(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse | None:
    """The answer to a client whose software name or version is not allowed; it has no APIs. Others' names are kept."""
    if context.version < FIRST_VERSION_WITH_SOFTWARE:
        return None
    if _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version):
        context.software.name = request.client_software_name
        return None
    return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)


def answer_now(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    refused = refusal(context, request)
    if refused is not None:
        return refused
    # Clients before version 4 cannot parse a feature whose least version is 0 (KAFKA-17011), so they are told 1.
    return _body(0 if context.version >= 4 else 1)


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to a version that is not served."""
    own = [entry for entry in _api_keys() if entry.api_key is ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


serve(
    ApiVersionsRequest,
    ApiVersionsResponse,
    VersionRange(0, 4),
    access=Access(open_to_all="clients need it before they can authenticate"),
    answer_now=answer_now,
)
