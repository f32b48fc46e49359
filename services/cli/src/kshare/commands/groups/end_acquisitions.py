"""`kshare groups release | reject`: ends what members hold, as an operator, at the share-partition's leader.

The records go the way of a client's RELEASE or REJECT, and the member's later acknowledgement is
INVALID_RECORD_STATE. The leader writes a line to its audit log, and events to the delivery history.
"""

from __future__ import annotations

from typing import NamedTuple

import typer

from kshare.addresses import Address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.groups.group_requests import read_share_offsets
from kshare.commands.groups.in_flight import called_like, leaders_of
from kshare.commands.state.coordinator_call import call_one
from kshare.commands.state.role_network import why_no_response
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Row, counted, show_outcome
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import topic_id_text
from kshare_core.states import AcknowledgeType
from kshare_core.whole_numbers import LARGEST_LONG, whole_number
from kshare_rpc.generated.kshare.v1 import leader_pb2 as pb
from kshare_rpc.generated.methods import END_ACQUISITIONS
from kshare_rpc.network import CallFailed

TYPES = {"release": AcknowledgeType.RELEASE, "reject": AcknowledgeType.REJECT}
DONE = {"release": "released", "reject": "rejected"}


class Ended(NamedTuple):
    """The records whose acquisitions end."""

    group: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.first_offset}-{self.last_offset}"


def parse_offset_range(text: str) -> tuple[int, int]:
    """FIRST-LAST, or one offset; CommandFailed."""
    first_text, dash, last_text = text.partition("-")
    first = whole_number(first_text, LARGEST_LONG)
    last = whole_number(last_text, LARGEST_LONG) if dash else first
    if first is None or last is None:
        raise CommandFailed(f"--offsets must be FIRST-LAST, such as 100-120, found {text!r}", BAD_USE)
    if last < first:
        raise CommandFailed(f"--offsets {text}: the last offset is below the first", BAD_USE)
    return first, last


def end_acquisitions(
    bootstrap: str,
    coordinator: Address,
    kind: str,
    ended: Ended,
    properties: Properties = NO_PROPERTIES,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Counts the records, asks back unless `yes`, and ends them; CommandFailed."""
    request = _request(bootstrap, kind, ended, properties)
    leader = _leader(coordinator, ended)
    request.dry_run = True
    count = _ask(leader, request, ended)
    if not dry_run:
        question = f"{kind} {counted(count, 'record')} of {ended}? Acknowledgements of the members that hold them fail"
        if not yes and not typer.confirm(question):
            raise CommandFailed("nothing was changed")
        request.dry_run = False
        count = _ask(leader, request, ended)
    outcome: Row = {**ended._asdict(), "records": count, "action": kind, "dry_run": dry_run}
    done = f"would {kind}" if dry_run else DONE[kind]
    show_outcome(f"{done} {counted(count, 'record')} of {ended} in group {ended.group}", outcome, as_json=as_json)


def _request(bootstrap: str, kind: str, ended: Ended, properties: Properties) -> pb.EndAcquisitionsRequest:
    offsets = read_share_offsets(bootstrap, ended.group, properties)
    topic_id = next(
        (one.topic_id for one in offsets if (one.topic, one.partition) == (ended.topic, ended.partition)), None
    )
    if topic_id is None:
        text = f"group {ended.group} has no share-partition {ended.topic}-{ended.partition}"
        raise CommandFailed(f"{text}; kshare groups in-flight {ended.group} shows all", BAD_USE)
    return pb.EndAcquisitionsRequest(
        group_id=ended.group,
        topic_id=topic_id,
        partition=ended.partition,
        first_offset=ended.first_offset,
        last_offset=ended.last_offset,
        acknowledge_type=TYPES[kind],
    )


def _leader(coordinator: Address, ended: Ended) -> Address:
    address = leaders_of(coordinator, [ended.topic]).get((ended.topic, ended.partition))
    if address is None:
        raise CommandFailed(f"{ended.topic}-{ended.partition} has no live leader; kshare nodes shows who is there")
    return called_like(coordinator, address)


def _ask(leader: Address, request: pb.EndAcquisitionsRequest, ended: Ended) -> int:
    answer = call_one(leader, END_ACQUISITIONS, request)
    if isinstance(answer, CallFailed):
        raise CommandFailed(f"the leader at {leader} did not answer: {why_no_response(leader, answer)}")
    if answer.error_code:
        text = answer.error_message.replace(topic_id_text(request.topic_id), ended.topic)
        raise CommandFailed(f"{text} ({ErrorCode(answer.error_code).name})")
    return answer.record_count
