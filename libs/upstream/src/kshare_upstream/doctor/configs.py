"""Configs of brokers, and replicas of kshare's topics, that decide what is lost when a broker fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kshare_core.errors import ErrorCode
from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_upstream.port import ClusterView, Upstream
from kshare_upstream.topics import replication_factor
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

DESCRIBE_CONFIGS = VersionRange(1, 4)
BROKER_RESOURCE = 4
MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION = "min.insync.replicas", "unclean.leader.election.enable"
READ_CONFIGS = (MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION)


async def examine_configs(upstream: Upstream, view: ClusterView, bootstrap: str, diagnosis: Diagnosis) -> None:
    """Findings about replication and elections, from the configs of every broker."""
    if len(view.brokers) == 1:
        diagnosis.add(
            Severity.WARNING,
            "the cluster has one broker: records and the state of share groups are on one disk only; add brokers",
        )
    values: dict[str, dict[int, str]] = {name: {} for name in READ_CONFIGS}
    for node_id in sorted(view.brokers):
        resource = DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=READ_CONFIGS
        )
        answer = await upstream.ask_broker(node_id, DescribeConfigsRequest(resources=[resource]), DESCRIBE_CONFIGS)
        (result,) = answer.results
        if result.error_code:
            diagnosis.add(*_unreadable(result.error_code, node_id, bootstrap))
            return
        for config in result.configs:
            if config.name in values and config.value is not None:
                values[config.name][node_id] = config.value
    _judge_replicas(values[MIN_INSYNC_REPLICAS], len(view.brokers), bootstrap, diagnosis)
    _judge_elections(values[UNCLEAN_ELECTION], bootstrap, diagnosis)


def examine_replicas(view: ClusterView, own_topics: Sequence[str], wanted: int, diagnosis: Diagnosis) -> None:
    """A warning about topics of kshare's with fewer replicas than they could have now."""
    possible = replication_factor(len(view.brokers), wanted)
    found = {name: view.topics[name].replication_factor for name in own_topics if name in view.topics}
    lacking = {name: count for name, count in found.items() if 0 < count < possible}
    if lacking:
        listed = ", ".join(f"{name} ({count})" for name, count in lacking.items())
        diagnosis.add(
            Severity.WARNING,
            f"topics of kshare have a replication factor below {possible}: {listed}. Their rows are lost with these "
            "brokers: add replicas with kafka-reassign-partitions.sh, and then set their min.insync.replicas to "
            f"{max(1, possible - 1)}",
        )


def _judge_replicas(values: dict[int, str], broker_count: int, bootstrap: str, diagnosis: Diagnosis) -> None:
    alone = [node_id for node_id, value in values.items() if value == "1"]
    if broker_count == 1 or not values:
        return
    if not alone:
        diagnosis.add(Severity.OK, f"{MIN_INSYNC_REPLICAS} is {' or '.join(sorted(set(values.values())))}")
        return
    diagnosis.add(
        Severity.WARNING,
        f"{MIN_INSYNC_REPLICAS} is 1 on {_brokers(alone)}: a record is confirmed while one broker alone has it, and is "
        "lost with that broker. It counts for topics without a value of their own; those of kshare have one",
        _alter(bootstrap, f"{MIN_INSYNC_REPLICAS}=2"),
    )


def _judge_elections(values: dict[int, str], bootstrap: str, diagnosis: Diagnosis) -> None:
    unclean = [node_id for node_id, value in values.items() if value.lower() == "true"]
    if unclean:
        diagnosis.add(
            Severity.WARNING,
            f"{UNCLEAN_ELECTION} is true on {_brokers(unclean)}: a broker without the newest records may become "
            "leader, and confirmed records are lost. It counts for topics without a value of their own; those of "
            "kshare have one",
            _alter(bootstrap, f"{UNCLEAN_ELECTION}=false"),
        )
    elif values:
        diagnosis.add(Severity.OK, f"{UNCLEAN_ELECTION} is false")


def _unreadable(code: int, node_id: int, bootstrap: str) -> tuple[Severity, str, str]:
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        command = (
            f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:KSHARE "
            "--operation DescribeConfigs --cluster"
        )
        return Severity.WARNING, "the user may not read the brokers' configs, so they were not checked", command
    return Severity.WARNING, f"broker {node_id} does not tell its configs (error {code}), so they were not checked", ""


def _brokers(node_ids: Iterable[int]) -> str:
    names = ", ".join(map(str, sorted(node_ids)))
    return f"broker {names}" if "," not in names else f"brokers {names}"


def _alter(bootstrap: str, config: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type brokers --entity-default "
        f"--add-config {config}"
    )
