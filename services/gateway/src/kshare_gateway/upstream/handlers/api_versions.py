"""ApiVersions in front of an existing cluster: the APIs of the cluster and of this gateway, and the features of both.

The gateway adds share.version, which clients and tools need for share groups. It lowers transaction.version to 1, since
transactions of level 2 need versions of Produce that are not relayed (`routes.LAST_VERSIONS`).
"""

from __future__ import annotations

from kshare_gateway.handlers.admin.api_versions import refusal
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import served_api
from kshare_wire.api_versions import FEATURES, FINALIZED_FEATURES_EPOCH, VersionRange
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.responses.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SHARE_VERSION = next(feature for feature in FEATURES if feature.name == "share.version")
TRANSACTION_VERSION, HIGHEST_TRANSACTION_VERSION = "transaction.version", 1
FIRST_VERSION_WITH_LEVEL_0 = 4
"""Earlier clients cannot parse a feature whose least version is 0 (KAFKA-17011)."""


def answer_now(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    refused = refusal(context, request)
    if refused is not None:
        return refused
    front = context.cluster.front
    theirs = front.brokers.features
    least = 0 if context.version >= FIRST_VERSION_WITH_LEVEL_0 else 1
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=each.minimum, max_version=each.maximum)
            for key, each in front.announced.items()
        ],
        supported_features=[
            *(
                SupportedFeatureKey(
                    name=feature.name,
                    min_version=max(least, feature.min_version),
                    max_version=_level(feature.name, feature.max_version),
                )
                for feature in theirs.supported_features
                if feature.name != SHARE_VERSION.name
            ),
            SupportedFeatureKey(
                name=SHARE_VERSION.name,
                min_version=max(least, SHARE_VERSION.minimum),
                max_version=SHARE_VERSION.maximum,
            ),
        ],
        finalized_features_epoch=max(FINALIZED_FEATURES_EPOCH, theirs.finalized_features_epoch),
        finalized_features=[
            *(
                FinalizedFeatureKey(
                    name=feature.name,
                    max_version_level=_level(feature.name, feature.max_version_level),
                    min_version_level=_level(feature.name, feature.min_version_level),
                )
                for feature in theirs.finalized_features
                if feature.name != SHARE_VERSION.name
            ),
            FinalizedFeatureKey(
                name=SHARE_VERSION.name,
                max_version_level=SHARE_VERSION.finalized,
                min_version_level=SHARE_VERSION.finalized,
            ),
        ],
    )


def _level(feature: str, level: int) -> int:
    return min(level, HIGHEST_TRANSACTION_VERSION) if feature == TRANSACTION_VERSION else level


API_VERSIONS = served_api(
    ApiVersionsRequest,
    ApiVersionsResponse,
    VersionRange(0, 4),
    access=Access(open_to_all="clients need it before they can authenticate"),
    answer_now=answer_now,
)
