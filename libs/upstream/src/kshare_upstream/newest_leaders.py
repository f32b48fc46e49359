"""The partition leaders of the newest epochs that brokers answered: an outdated Metadata answer does not replace them.

A broker that is cut off from its controller answers with former leaders, whose epochs are older. A cluster whose
metadata was restored from a backup has older epochs too, and for good. So an older epoch is taken once it was answered
as often, in a row, as there are brokers, which are asked in turn.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_upstream.port import NO_LEADER, PartitionLeader, Topic

NO_TOPIC_ID = bytes(16)
UNKNOWN_EPOCH = -1
OLDER_ANSWERS = 3
"""At least so many answers in a row must agree on an older epoch."""


class _Older(NamedTuple):
    """A leader of an older epoch, and how many answers in a row named it."""

    leader: PartitionLeader
    answers: int


class NewestLeaders:
    """What is known of each topic, also where leaders were forgotten."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._older: dict[str, dict[int, _Older]] = {}

    def current(self, found: Topic, brokers: int) -> Topic:
        """The topic of an answer, with the newer leaders that are known; `brokers` is how many the cluster has.

        A topic without an id may be another one than before, whose epochs begin anew.
        """
        known, before = self._topics.get(found.name), self._older.pop(found.name, {})
        topic = found
        if known is not None and known.topic_id == found.topic_id != NO_TOPIC_ID:
            older: dict[int, _Older] = {}
            kept: dict[int, PartitionLeader] = {}
            for partition, leader in found.leaders.items():
                newest = known.leaders.get(partition)
                if newest is None or not _is_older(leader, newest):
                    continue
                last = before.get(partition)
                answers = last.answers + 1 if last is not None and last.leader == leader else 1
                if answers < max(OLDER_ANSWERS, brokers):
                    older[partition] = _Older(leader, answers)
                    kept[partition] = newest
            if kept:
                self._older[found.name] = older
                topic = dataclasses.replace(found, leaders={**found.leaders, **kept})
        if topic.leaders:
            self._topics[topic.name] = topic
        elif topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._topics.pop(topic.name, None)
        return topic


def _is_older(leader: PartitionLeader, newest: PartitionLeader) -> bool:
    """Whether a leader's epoch is older; brokers that do not know epochs may name the leader all the same."""
    if leader.leader_epoch == UNKNOWN_EPOCH and leader.node_id != NO_LEADER:
        return False
    return leader.leader_epoch < newest.leader_epoch
