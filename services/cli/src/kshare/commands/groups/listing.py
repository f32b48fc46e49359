"""`kshare groups list` and `kshare groups describe`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rich.console import Console

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach
from kshare.commands.groups.group_requests import ShareOffset, describe_share_group, list_groups, read_share_offsets
from kshare.commands.groups.overview import GroupOverview, read_overviews
from kshare.failure import CommandFailed
from kshare.kafka_connection import Refused
from kshare.output import Listing, Row, counted, show, show_json
from kshare_core.errors import ErrorCode
from kshare_wire.generated.responses.share_group_describe import DescribedGroup, Member

SHOWN_CLIENTS = 3


def show_groups(bootstrap: str, console: Console, properties: Properties = NO_PROPERTIES, *, as_json: bool) -> None:
    """Prints all groups, with members, client ids and lag of share groups."""
    show(console, groups_listing(read_overviews(bootstrap, properties)), as_json=as_json)


def groups_listing(groups: Sequence[GroupOverview]) -> Listing:
    rows: list[Row] = [
        {
            "group": group.group_id,
            "type": group.kind,
            "state": group.state,
            "members": group.members,
            "lag": group.lag,
            "clients": clients_text(group.client_ids),
            "client_ids": list(group.client_ids),
        }
        for group in groups
    ]
    fields = ("group", "type", "state", "members", "lag", "clients")
    behind = [group.lag for group in groups if group.lag]
    summary = f"{counted(len(groups), 'group')}, {len(behind):,} with lag: {counted(sum(behind), 'record')}"
    return Listing("groups", dict(zip(fields, fields, strict=True)), rows, summary)


def clients_text(client_ids: Sequence[str]) -> str:
    """The first client ids, and how many more there are."""
    more = len(client_ids) - SHOWN_CLIENTS
    return ", ".join(client_ids[:SHOWN_CLIENTS]) + (f" and {more} more" if more > 0 else "")


def show_group(
    bootstrap: str, group_id: str, console: Console, properties: Properties = NO_PROPERTIES, *, as_json: bool
) -> None:
    """Prints a share group's state, epochs and lag, its members with their assignments, and its start offsets."""
    reach(bootstrap, properties)
    group = _described(bootstrap, group_id, properties)
    offsets = read_share_offsets(bootstrap, group_id, properties)
    known = [offset.lag for offset in offsets if offset.lag >= 0]
    client_ids = sorted({str(member.client_id) for member in group.members})
    if as_json:
        show_json(
            console,
            {
                "group": str(group.group_id),
                "state": group.group_state,
                "group_epoch": int(group.group_epoch),
                "assignment_epoch": int(group.assignment_epoch),
                "assignor": group.assignor_name,
                "lag": sum(known) if known else None,
                "client_ids": client_ids,
                "members": [dict(_member_row(member)) for member in group.members],
                "offsets": [dict(_offset_row(offset)) for offset in offsets],
            },
        )
        return
    console.print(f"group       {group.group_id}", markup=False, highlight=False)
    console.print(f"state       {group.group_state}")
    console.print(
        f"epoch       {group.group_epoch} (assignment {group.assignment_epoch}, assignor {group.assignor_name})"
    )
    console.print(f"lag         {_lag_text(known, len(offsets))}", highlight=False)
    console.print(f"members     {len(group.members)}")
    if client_ids:
        console.print(f"clients     {clients_text(client_ids)}", markup=False, highlight=False)
    if group.members:
        headings = {"member": "member", "epoch": "epoch", "client": "client", "host": "host", "assigned": "assigned"}
        rows: list[Row] = [{**_member_row(member), "assigned": assignment_text(member)} for member in group.members]
        show(console, Listing("members", headings, rows), as_json=False)
    if offsets:
        headings = {"topic": "topic", "partition": "partition", "start_offset": "start offset", "lag": "lag"}
        show(console, Listing("offsets", headings, [_offset_row(offset) for offset in offsets]), as_json=False)


def _described(bootstrap: str, group_id: str, properties: Properties) -> DescribedGroup:
    """The group; CommandFailed with what to do next if there is no share group of this id."""
    try:
        return describe_share_group(bootstrap, group_id, properties)
    except Refused as refused:
        if refused.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        groups = {str(group.group_id): group.group_type for group in list_groups(bootstrap, properties)}
        if group_id in groups:
            raise CommandFailed(
                f"{refused}; it is of type {groups[group_id]}, and only share groups are shown"
            ) from None
        near = difflib.get_close_matches(group_id, groups, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "kshare groups list shows all groups"
        raise CommandFailed(f"{refused}; {hint}") from None


def _lag_text(known: Sequence[int], partitions: int) -> str:
    if not partitions:
        return "- (the group has no start offsets yet)"
    unknown = f", unknown in {partitions - len(known):,}" if len(known) < partitions else ""
    return f"{counted(sum(known), 'record')} in {counted(partitions, 'partition')}{unknown}"


def _offset_row(offset: ShareOffset) -> Row:
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "start_offset": offset.start_offset if offset.start_offset >= 0 else None,
        "lag": offset.lag if offset.lag >= 0 else None,
    }


def _member_row(member: Member) -> Row:
    return {
        "member": member.member_id,
        "epoch": int(member.member_epoch),
        "client": member.client_id,
        "host": member.client_host,
        "assigned": {
            str(topic.topic_name): [int(partition) for partition in sorted(topic.partitions)]
            for topic in member.assignment.topic_partitions
        },
    }


def assignment_text(member: Member) -> str:
    """A member's assignment: one line such as `orders: 0, 1` for each topic."""
    topics = sorted(member.assignment.topic_partitions, key=lambda topic: topic.topic_name)
    return "\n".join(f"{topic.topic_name}: {', '.join(map(str, sorted(topic.partitions)))}" for topic in topics)
