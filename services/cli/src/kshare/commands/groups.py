"""`kshare groups`: list all groups, and describe a share group."""

from __future__ import annotations

from kio.schema.share_group_describe.v1.response import Member
from rich.console import Console
from rich.table import Table

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.kafka_connection import describe_share_group, list_groups


def show_groups(bootstrap: str, console: Console, properties: Properties = NO_PROPERTIES) -> None:
    """A table of all groups."""
    table = Table("group", "type", "state")
    for group in list_groups(bootstrap, properties):
        table.add_row(group.group_id, group.group_type or group.protocol_type, group.group_state)
    console.print(table)


def show_group(bootstrap: str, group_id: str, console: Console, properties: Properties = NO_PROPERTIES) -> None:
    """State and epochs of a share group, and a table of its members with what is assigned to them."""
    group = describe_share_group(bootstrap, group_id, properties)
    console.print(f"group       {group.group_id}")
    console.print(f"state       {group.group_state}")
    console.print(
        f"epoch       {group.group_epoch} (assignment {group.assignment_epoch}, assignor {group.assignor_name})"
    )
    console.print(f"members     {len(group.members)}")
    if not group.members:
        return
    table = Table("member", "epoch", "client", "host", "assigned")
    for member in group.members:
        table.add_row(
            member.member_id, str(member.member_epoch), member.client_id, member.client_host, assignment_text(member)
        )
    console.print(table)


def assignment_text(member: Member) -> str:
    """`orders: 0, 1` for each topic."""
    topics = sorted(member.assignment.topic_partitions, key=lambda topic: topic.topic_name)
    return "\n".join(f"{topic.topic_name}: {', '.join(map(str, sorted(topic.partitions)))}" for topic in topics)
