"""`kshare partitions move`: refused, because the records of a partition lie on its leader's disk only.

In the embedded engine a leader that was told to lead a partition would begin with an empty log: every record would be
gone for its readers, and offsets of groups would point beyond the end. A move needs what the moves of state partitions
have (fence the old leader, copy log and producer state, switch the placement with a new leader epoch), and a way for
leaders to hand over logs, which they do not have.
"""

from __future__ import annotations

from typing import NoReturn

from kshare.failure import BAD_USE, CommandFailed


def refuse_to_move(partition: str, leader: int) -> NoReturn:
    """CommandFailed: for a partition that is not written as TOPIC:PARTITION, and for every other one."""
    topic, colon, number = partition.rpartition(":")
    if not colon or not topic or not (number.isascii() and number.isdigit()):
        raise CommandFailed(f"the partition must be TOPIC:PARTITION, such as orders:0; found {partition!r}", BAD_USE)
    raise CommandFailed(
        f"partition {number} of topic {topic} cannot be moved to leader {leader}: its records are on the disk of the "
        "leader that has it, and no other leader can get a copy of them. To spread new load, create topics or add "
        "partitions after the new leader has joined; they go to the leader that has least",
        BAD_USE,
    )
