"""The rules of the delivery history on small histories: readers order by leader epoch, incarnation and sequence."""

from __future__ import annotations

from kshare_core.delivery_history import DeliveryEvent, DurableRun, EventType, HistoryRecord
from support.simulation.evidence import Evidence, Expectations
from support.simulation.history import AcknowledgeAnswered, AcknowledgeSent, History
from support.simulation.rules.delivery_history import HistoryRules
from support.simulation.scenario import TOPIC

ACCEPT = 1
MEMBER = "m1"


def record(leader: int, sequence: int, *events: DeliveryEvent) -> HistoryRecord:
    """Of leader 1 in leader epoch 1, or of leader 2 in leader epoch 2."""
    return HistoryRecord(
        leader=leader,
        incarnation=10 * leader,
        sequence=sequence,
        group="g1",
        topic=TOPIC,
        topic_id="",
        partition=0,
        state_epoch=1,
        leader_epoch=leader,
        events=events,
    )


def loaded(start_offset: int, *runs: DurableRun) -> DeliveryEvent:
    return DeliveryEvent(event=EventType.LOADED, time_ms=0, start_offset=start_offset, runs=runs)


def of_offset_5(kind: EventType) -> DeliveryEvent:
    return DeliveryEvent(event=kind, time_ms=0, first_offset=5, last_offset=5, delivery_count=1, member_id=MEMBER)


def problems(*records: HistoryRecord) -> list[str]:
    """Member m1 has accepted offset 5."""
    history = History()
    history.add(AcknowledgeSent(1.0, 1, "g1", MEMBER, 0, (5, 5), ACCEPT))
    history.add(AcknowledgeAnswered(1.1, 1, 0))
    expectations = Expectations(groups=("g1",), logs={}, delivery_count_limit=5, lock_duration_s=10.0)
    return HistoryRules(records, {MEMBER: MEMBER}, Evidence(history, expectations), may_lose=True).problems


FIRST = record(1, 0, loaded(5), of_offset_5(EventType.ACQUIRED))
LAST = record(1, 2, of_offset_5(EventType.ACCEPTED), DeliveryEvent(event=EventType.UNLOADED, time_ms=0, reason="X"))
NEXT = record(2, 0, loaded(6))


def test_the_last_events_of_a_former_leader_may_come_after_the_first_ones_of_the_next() -> None:
    assert problems(FIRST, LAST, NEXT) == []
    assert problems(FIRST, NEXT, LAST) == []
    assert problems(NEXT, FIRST, LAST, LAST) == []  # and twice


def test_what_the_next_leader_loaded_has_what_a_former_one_told_late() -> None:
    forgotten = record(2, 0, loaded(5))
    assert any("5 was accepted" in problem for problem in problems(FIRST, forgotten, LAST))


def test_the_events_of_one_leader_are_in_order_in_the_topic() -> None:
    assert any("comes behind" in problem for problem in problems(LAST, FIRST, NEXT))
