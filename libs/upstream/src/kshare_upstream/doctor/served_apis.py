"""The APIs that kshare calls, the least version of each, and what the versions say about the brokers."""

from __future__ import annotations

from collections.abc import Mapping

from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey

NEEDED: Mapping[ApiKey, int] = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 11,
    ApiKey.LIST_OFFSETS: 2,
    ApiKey.METADATA: 7,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 0,
    ApiKey.INIT_PRODUCER_ID: 0,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 3,
    ApiKey.DESCRIBE_CONFIGS: 1,
}
"""The least version that a broker must serve, by API."""
TOPIC_IDS_SINCE = 10
"""The version of Metadata that has topic ids (KIP-516)."""
RELEASES: tuple[tuple[str, ApiKey, int], ...] = (
    ("4.1", ApiKey.SHARE_GROUP_HEARTBEAT, 1),
    ("3.9", ApiKey.FETCH, 17),
    ("3.7", ApiKey.FETCH, 16),
    ("3.5", ApiKey.FETCH, 15),
    ("3.1", ApiKey.FETCH, 13),
    ("2.8", ApiKey.DESCRIBE_CLUSTER, 0),
    ("2.4", ApiKey.FETCH, 11),
)
"""The first release of Apache Kafka whose brokers serve an API in a version; brokers do not tell their release."""


def examine_apis(versions: Mapping[int, VersionRange], broker_count: int, diagnosis: Diagnosis) -> None:
    """Findings about what all brokers serve."""
    number = "1 broker" if broker_count == 1 else f"{broker_count} brokers"
    release = next((name for name, api, least in RELEASES if _serves(versions, api, least)), None)
    spoken = f"the protocol of Apache Kafka {release} or later" if release else "a protocol older than Apache Kafka 2.4"
    diagnosis.add(Severity.OK, f"{number} with {spoken}")
    for api, least in NEEDED.items():
        if not _serves(versions, api, least):
            found = versions.get(api)
            told = f"its highest version is {found.maximum}" if found else "no broker serves it, or not all do"
            diagnosis.add(
                Severity.REFUSAL,
                f"{_name(api)} is needed in version {least} or later: {told}; upgrade the brokers",
            )
    if not _serves(versions, ApiKey.METADATA, TOPIC_IDS_SINCE):
        diagnosis.add(
            Severity.WARNING,
            "the brokers have no topic ids: a topic that is deleted and made again under its name is taken for the "
            "same topic; upgrade them to Kafka 2.8 or later",
        )
    if _serves(versions, ApiKey.SHARE_FETCH, 1):
        diagnosis.add(Severity.NOTE, "the brokers have share groups of their own (KIP-932)")


def _serves(versions: Mapping[int, VersionRange], api: ApiKey, least: int) -> bool:
    found = versions.get(api)
    return found is not None and found.maximum >= least


def _name(api: ApiKey) -> str:
    return "".join(word.capitalize() for word in api.name.split("_"))
