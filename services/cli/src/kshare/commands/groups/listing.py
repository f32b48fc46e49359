"""`kshare groups list` and `kshare groups describe`."""

from __future__ import annotations

from rich.console import Console

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach
from kshare.commands.groups.group_requests import describe_share_group, list_groups
from kshare.output import Listing, Row, show, show_json
from kshare_wire.generated.responses.share_group_describe import Member


def show_groups(bootstrap: str, console: Console, properties: Properties = NO_PROPERTIES, *, as_json: bool) -> None:
    """Prints all groups."""
    rows: list[Row] = [
        {"group": group.group_id, "type": group.group_type or group.protocol_type, "state": group.group_state}
        for group in list_groups(bootstrap, properties)
    ]
    show(console, Listing("groups", {"group": "group", "type": "type", "state": "state"}, rows), as_json=as_json)


def show_group(
    bootstrap: str, group_id: str, console: Console, properties: Properties = NO_PROPERTIES, *, as_json: bool
) -> None:
    """Prints a share group's state and epochs, and its members with their assignments."""
    reach(bootstrap, properties)
    group = describe_share_group(bootstrap, group_id, properties)
    if as_json:
        show_json(
            console,
            {
                "group": str(group.group_id),
                "state": group.group_state,
                "group_epoch": int(group.group_epoch),
                "assignment_epoch": int(group.assignment_epoch),
                "assignor": group.assignor_name,
                "members": [dict(_member_row(member)) for member in group.members],
            },
        )
        return
    console.print(f"group       {group.group_id}", markup=False, highlight=False)
    console.print(f"state       {group.group_state}")
    console.print(
        f"epoch       {group.group_epoch} (assignment {group.assignment_epoch}, assignor {group.assignor_name})"
    )
    console.print(f"members     {len(group.members)}")
    if not group.members:
        return
    headings = {"member": "member", "epoch": "epoch", "client": "client", "host": "host", "assigned": "assigned"}
    rows: list[Row] = [{**_member_row(member), "assigned": assignment_text(member)} for member in group.members]
    show(console, Listing("members", headings, rows), as_json=False)


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
