"""`kshare topics describe`: a topic's partitions with their offsets, its configs, and the share groups that read it."""

from __future__ import annotations

from rich.console import Console

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.groups.overview import GroupOverview, read_overviews
from kshare.commands.offsets import EARLIEST, LATEST, look_up_offsets
from kshare.commands.resource_configs import TOPIC, own_configs
from kshare.endpoint import Endpoint
from kshare.output import Listing, Row, counted, show, show_json
from kshare_wire.generated.responses.metadata import MetadataResponsePartition


def show_topic(
    bootstrap: str, name: str, console: Console, properties: Properties = NO_PROPERTIES, *, as_json: bool
) -> None:
    """Prints the topic; CommandFailed if it does not exist."""
    topic = topic_of(reach(bootstrap, properties), name)
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    online = [(name, int(partition.partition_index)) for partition in partitions if partition.leader_id >= 0]
    first = look_up_offsets(bootstrap, online, EARLIEST, properties) if online else {}
    end = look_up_offsets(bootstrap, online, LATEST, properties) if online else {}
    rows = [
        _partition_row(partition, first.get((name, index)), end.get((name, index)))
        for partition in partitions
        for index in (int(partition.partition_index),)
    ]
    configs = own_configs(Endpoint(bootstrap, properties), TOPIC, [name]).get(name, {})
    readers = [row for group in read_overviews(bootstrap, properties) for row in _reader_rows(group, name)]
    records = sum(end[each] - first[each] for each in online)
    if as_json:
        fields: Row = {"topic": name, "records": records, "configs": configs, "partitions": rows, "groups": readers}
        show_json(console, fields)
        return
    console.print(f"topic       {name}", markup=False, highlight=False)
    console.print(f"records     {records:,} in {counted(len(rows), 'partition')}", highlight=False)
    if len(online) < len(rows):
        without = ", ".join(str(row["partition"]) for row in rows if row["leader"] is None)
        console.print(f"no leader   partitions {without}", highlight=False)
    for config, value in sorted(configs.items()):
        console.print(f"config      {config}={value}", markup=False, highlight=False, soft_wrap=True)
    headings = {
        "partition": "partition",
        "leader": "leader",
        "first_offset": "first offset",
        "end_offset": "end offset",
    }
    listings = [Listing("partitions", {**headings, "records": "records"}, rows)]
    if readers:
        columns = {"group": "share group", "members": "members", "lag": "lag"}
        listings.append(Listing("groups", columns, readers))
    show(console, *listings, as_json=False)


def _partition_row(partition: MetadataResponsePartition, first: int | None, end: int | None) -> Row:
    return {
        "partition": int(partition.partition_index),
        "leader": int(partition.leader_id) if partition.leader_id >= 0 else None,
        "first_offset": first,
        "end_offset": end,
        "records": None if first is None or end is None else end - first,
    }


def _reader_rows(group: GroupOverview, topic: str) -> list[Row]:
    """The group's row, if it has start offsets in the topic."""
    return [
        {
            "group": group.group_id,
            "members": group.members,
            "lag": each.lag if each.unknown < each.partitions else None,
        }
        for each in group.topics or ()
        if each.topic == topic
    ]
