"""Whether kshare may create and write the topic of the delivery history, which has a name without kshare's prefix."""

from __future__ import annotations

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_upstream.connection import NotServed
from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_upstream.partition_log import Refused
from kshare_upstream.port import Upstream
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic

METADATA = VersionRange(8, 12)
"""The versions that tell what the user may do with a topic (KIP-430)."""
OPERATIONS = {"Describe": 8, "DescribeConfigs": 10, "Write": 4}
"""What leaders need of a topic that exists, with the codes of AclOperation."""
NOT_TOLD = -1 << 31


async def examine_history_topic(upstream: Upstream, bootstrap: str, replicas: int, diagnosis: Diagnosis) -> None:
    """A warning where events could not be stored, with the command that grants the rights."""
    try:
        lacking = await _lacking(upstream, replicas)
    except (Refused, NotServed) as problem:
        diagnosis.add(Severity.WARNING, f"the delivery history may not be written: {problem}")
        return
    if not lacking:
        diagnosis.add(Severity.OK, f"the delivery history can be written to topic {HISTORY_TOPIC}")
        return
    granted = " ".join(f"--operation {name}" for name in ("Create", *OPERATIONS))
    diagnosis.add(
        Severity.WARNING,
        f"the delivery history cannot be written: the user lacks {lacking} on topic {HISTORY_TOPIC}",
        f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:KSHARE {granted} "
        f"--topic {HISTORY_TOPIC}",
    )


async def _lacking(upstream: Upstream, replicas: int) -> str:
    """Operations that the user lacks, empty if none is known to be missing; Refused."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=HISTORY_TOPIC)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    answer = await upstream.ask_any(request, METADATA)
    (topic,) = answer.topics
    if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return "Describe"
    if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        bits = topic.topic_authorized_operations
        return ", ".join(name for name, code in OPERATIONS.items() if bits != NOT_TOLD and not bits & 1 << code)
    try:
        await create_topic(upstream, HISTORY_TOPIC, partitions=1, replicas=replicas, configs={}, is_trial=True)
    except Refused as refused:
        if refused.code not in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return "Create"
    return ""
