"""`kshare detach`: reads each group at both places, sets configs and start offsets in the cluster, and reads them back.

A group's configs are set first: they may be refused, and then its offsets are as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import typer
from rich.console import Console

from kshare.cluster_metadata import reach
from kshare.commands.groups.group_requests import (
    alter_share_offsets,
    describe_share_group,
    list_groups,
    read_share_offsets,
)
from kshare.commands.resource_configs import GROUP, alter_configs, known_configs, own_configs
from kshare.commands.state.group_state import SharePartitionState, read_group_state
from kshare.detach.plan import DetachPlan, GroupAtCluster, GroupAtKshare, plan_group
from kshare.endpoint import Endpoint
from kshare.failure import CommandFailed
from kshare.kafka_connection import Refused, connect_to_any, refuse
from kshare.output import Listing, Row, show
from kshare_core.errors import ErrorCode
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.responses.share_group_describe import Member

SHARE = "share"
FEATURE = "share.version"
API_VERSIONS_VERSION = 3
ALTER_SHARE_GROUP_OFFSETS = 91
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
PATIENCE_S, PAUSE_S = 30.0, 0.2
SOFTWARE, SOFTWARE_VERSION = "kshare-cli", "0.1.0"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detachment:
    """The options of the command; without `groups`, all share groups of the kshare that have offsets."""

    kshare: Endpoint
    cluster: Endpoint
    groups: Sequence[str]
    may_go_back: bool


def run_detachment(detachment: Detachment, console: Console, *, dry_run: bool, as_json: bool) -> None:
    """Detaches each group that may be, and shows them all; CommandFailed then if one was not detached."""
    require_share_groups(detachment.cluster)
    plans = make_plans(detachment)
    if not dry_run:
        for plan in plans:
            if plan.problem is None:
                _carry_out(detachment.cluster, plan)
    _show(plans, console, dry_run=dry_run, as_json=as_json)
    refused = [plan.problem for plan in plans if plan.problem is not None]
    if refused:
        more = f" (and {len(refused) - 1} other groups)" if len(refused) > 1 else ""
        raise CommandFailed(f"not detached: {refused[0]}{more}")


def require_share_groups(cluster: Endpoint) -> None:
    """CommandFailed unless the cluster has share groups whose offsets can be set."""
    request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version=SOFTWARE_VERSION)
    with connect_to_any(cluster.bootstrap, what="--to", properties=cluster.properties) as connection:
        answer = connection.call(request, API_VERSIONS_VERSION)
    refuse(answer.error_code, "asking for API versions")
    if all(api.api_key != ALTER_SHARE_GROUP_OFFSETS for api in answer.api_keys):
        raise CommandFailed(f"{cluster.bootstrap} cannot set offsets of share groups; Apache Kafka 4.2 or later can")
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    if levels.get(FEATURE, 0) < 1:
        command = f"kafka-features.sh --bootstrap-server {cluster.bootstrap} upgrade --feature {FEATURE}=1"
        raise CommandFailed(f"share groups are not enabled at {cluster.bootstrap}: {command}")


def make_plans(detachment: Detachment) -> list[DetachPlan]:
    """A plan for each group, by id; changes nothing. CommandFailed."""
    group_ids = sorted(set(detachment.groups)) or _groups_with_offsets(detachment.kshare)
    topic_ids = {str(topic.name): topic.topic_id for topic in reach(*detachment.cluster).topics}
    kinds = {group.group_id: _kind(group.group_type) for group in list_groups(*detachment.cluster)}
    our_configs = own_configs(detachment.kshare, GROUP, group_ids)
    their_configs = own_configs(detachment.cluster, GROUP, group_ids)
    known = known_configs(detachment.cluster, GROUP, group_ids[0]) if group_ids else frozenset[str]()
    plans = []
    for group_id in group_ids:
        kind = kinds.get(group_id, "")
        ours = GroupAtKshare(
            group_id=group_id,
            members=_members(detachment.kshare, group_id),
            states=_states(detachment.kshare, group_id),
            configs=our_configs[group_id],
        )
        theirs = GroupAtCluster(
            kind=kind,
            members=_members(detachment.cluster, group_id) if kind == SHARE else (),
            start_offsets=_start_offsets(detachment.cluster, group_id) if kind == SHARE else {},
            configs=their_configs[group_id],
            known_configs=known,
        )
        plans.append(plan_group(ours, theirs, topic_ids, may_go_back=detachment.may_go_back))
    return plans


def _carry_out(cluster: Endpoint, plan: DetachPlan) -> None:
    if plan.configs:
        alter_configs(cluster, GROUP, plan.group_id, plan.configs)
    offsets = plan.offsets_to_set
    if offsets:
        _patiently(lambda: alter_share_offsets(cluster.bootstrap, plan.group_id, offsets, cluster.properties))
    found = _patiently(lambda: _start_offsets(cluster, plan.group_id))
    for each in plan.partitions:
        if found.get(each.name) != each.start_offset:
            where = f"group {plan.group_id} in {each.topic}:{each.partition}"
            raise CommandFailed(
                f"{where} has start offset {found.get(each.name, -1)} after it was set to {each.start_offset}; "
                "start no consumer of it, and run the command again"
            )


def _patiently(request: Callable[[], Result]) -> Result:
    """Repeats a request while the cluster makes the topics of its coordinators, as it does for its first group."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return request()
        except Refused as refused:
            if refused.code not in NOT_YET or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


def _groups_with_offsets(kshare: Endpoint) -> list[str]:
    """Share groups of kshare's own: with the cluster's listed among them, those have no offsets at kshare."""
    listed = [group.group_id for group in list_groups(*kshare) if group.group_type == SHARE]
    return [group_id for group_id in listed if read_share_offsets(kshare.bootstrap, group_id, kshare.properties)]


def _kind(group_type: str) -> str:
    return group_type.lower() or "classic"


def _members(cluster: Endpoint, group_id: str) -> list[str]:
    return [_named(member) for member in describe_share_group(cluster.bootstrap, group_id, cluster.properties).members]


def _named(member: Member) -> str:
    return f"{member.member_id} ({member.client_id} at {member.client_host})"


def _states(kshare: Endpoint, group_id: str) -> list[SharePartitionState]:
    return read_group_state(kshare.bootstrap, group_id, None, kshare.properties)


def _start_offsets(cluster: Endpoint, group_id: str) -> dict[tuple[str, int], int]:
    return {
        (offset.topic, offset.partition): offset.start_offset
        for offset in read_share_offsets(cluster.bootstrap, group_id, cluster.properties)
    }


def _show(plans: Sequence[DetachPlan], console: Console, *, dry_run: bool, as_json: bool) -> None:
    done = "ready" if dry_run else "detached"
    groups: list[Row] = [
        {
            "group": plan.group_id,
            "result": done if plan.problem is None else "refused",
            "again": plan.again,
            "configs": _texts(plan.configs),
            "left_out": _texts(plan.left_out),
            "problem": plan.problem,
        }
        for plan in plans
    ]
    offsets: list[Row] = [
        {
            "group": plan.group_id,
            "topic": each.topic,
            "partition": each.partition,
            "start_offset": each.start_offset,
            "before": None if each.before < 0 else each.before,
            "again": each.again,
        }
        for plan in plans
        if plan.problem is None
        for each in plan.partitions
    ]
    group_headings = {"group": "group", "result": "result", "again": "delivered again", "configs": "configs copied"}
    if any(plan.left_out for plan in plans):
        group_headings["left_out"] = "configs left out"
    offset_headings = {
        "group": "group",
        "topic": "topic",
        "partition": "partition",
        "start_offset": "start offset",
        "before": "was",
        "again": "delivered again",
    }
    listings = [Listing("groups", group_headings, groups), Listing("offsets", offset_headings, offsets)]
    show(console, *listings, as_json=as_json)
    if not as_json:
        for line in _explanation(plans, dry_run=dry_run):
            typer.echo(line)


def _explanation(plans: Sequence[DetachPlan], *, dry_run: bool) -> list[str]:
    lines = [plan.problem for plan in plans if plan.problem is not None]
    ready = [plan for plan in plans if plan.problem is None]
    again = sum(plan.again for plan in ready)
    if again:
        lines.append(
            f"{again} records are finished at kshare, behind others that are not: the cluster delivers them again"
        )
    if ready:
        lines.append("delivery counts start anew in the cluster, and a start offset alone is carried over")
    if dry_run:
        lines.append("nothing was changed (--dry-run)")
    return lines


def _texts(configs: Mapping[str, str]) -> str | None:
    return ", ".join(f"{name}={value}" for name, value in sorted(configs.items())) or None
