"""What views of the existing cluster say about topics, and when the absence of a topic is believed.

A view with a topic is believed at once, and so is another id: ids are never used twice. An absence is not, because it
ends in the removal of the topic's share-group state, and a broker may answer UNKNOWN_TOPIC_OR_PARTITION shortly after
its start, or while it is cut off from its controller. It has to be seen in ABSENT_POLLS polls in a row, in views that
name a live controller; then most of the brokers, and all that answer, must say the same (`topic_mirror`).

A broker that is behind may still show a topic that was removed or replaced. Its id is ignored for REPLACED_FOR_MS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kshare_coordinator.machine.commands import MirroredTopic
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import ZERO_TOPIC_ID
from kshare_upstream.port import ClusterView, Topic

ABSENT_POLLS = 3
REPLACED_FOR_MS = 60_000
COMPLETE = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
"""Error codes of topics whose partitions the view has."""


@dataclass(slots=True)
class Seen:
    """The result of one view."""

    topics: list[MirroredTopic] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)
    """Topics of the catalog that are absent for the ABSENT_POLLSth time."""
    refused: dict[str, int] = field(default_factory=dict)
    """Error codes by name of topics that the broker does not show, but for absent ones."""


class Sightings:
    """The memory of earlier views; `new_id` makes ids for a cluster that has none."""

    def __init__(self, new_id: Callable[[], bytes]) -> None:
        self._new_id = new_id
        self._absent: dict[str, int] = {}
        """How many polls in a row did not have a topic of the catalog."""
        self._replaced: dict[bytes, float] = {}
        """Ids that topics had, and when they lost them."""

    def see(self, view: ClusterView, state: CoordinatorState, now_ms: float, *, is_poll: bool) -> Seen:
        """`is_poll`: absences count; look-ups in between do not bring a removal nearer."""
        self._replaced = {
            topic_id: at_ms for topic_id, at_ms in self._replaced.items() if now_ms < at_ms + REPLACED_FOR_MS
        }
        seen = Seen()
        has_controller = view.controller_id in view.brokers
        for topic in view.topics.values():
            known = state.topic_named(topic.name)
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if known is not None and is_poll and has_controller:
                    self._note_absence(topic.name, seen)
                continue
            self._absent.pop(topic.name, None)
            if topic.error_code not in COMPLETE:
                seen.refused[topic.name] = topic.error_code
            elif _is_complete(topic) and topic.topic_id not in self._replaced:
                has_own_id = topic.topic_id != ZERO_TOPIC_ID
                seen.topics.append(
                    MirroredTopic(
                        name=topic.name,
                        topic_id=topic.topic_id if has_own_id else self._new_id(),
                        partition_count=len(topic.leaders),
                        has_own_id=has_own_id,
                    )
                )
        return seen

    def _note_absence(self, name: str, seen: Seen) -> None:
        self._absent[name] = self._absent.get(name, 0) + 1
        if self._absent[name] >= ABSENT_POLLS:
            seen.suspects.append(name)

    def replaced(self, topic_ids: Iterable[bytes], now_ms: float) -> None:
        """Topics lost these ids: they were removed, or others have their names."""
        self._replaced.update(dict.fromkeys(topic_ids, now_ms))

    def judged(self, suspects: Iterable[str]) -> None:
        """The brokers were asked about them; their absences are counted anew."""
        for name in suspects:
            self._absent.pop(name, None)


def _is_complete(topic: Topic) -> bool:
    """Whether the view has all partitions; before KRaft a broker may hear of them one after the other."""
    return bool(topic.leaders) and sorted(topic.leaders) == list(range(len(topic.leaders)))
