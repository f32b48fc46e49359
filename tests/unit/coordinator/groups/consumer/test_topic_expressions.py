"""Lookups of regular expressions: large ones go on in later turns, and none takes more than its share of a second."""

from __future__ import annotations

import re
from random import Random

import pytest

from kshare_coordinator.machine.commands import ExpressionRefused
from kshare_coordinator.machine.groups.consumer.requests import EXPRESSIONS_LIMIT
from kshare_coordinator.machine.groups.consumer.subscriptions import (
    DEMAND_LASTS_MS,
    EXPRESSIONS_REMEMBERED,
    STEPS_AT_ONCE,
    STEPS_OF_TURN,
    STEPS_PER_SECOND,
    TopicExpressions,
)
from kshare_coordinator.machine.regular_expressions import RegularExpression
from kshare_coordinator.machine.security.describable_topics import Client
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from support.coordinator.driver import CoordinatorDriver
from support.groups.consumer_groups import assigned, join_request, request_of, send

LARGE = ".?a?" * 2_500
COSTLY = ".?a?" * 700
"""Matches every name of at most 700 characters."""
NAME = "shop.orders.payments.team-{:05}.events-v1"
NAMES = [NAME.format(number) for number in range(3_000)]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The costs of all matches."""
    found: list[int] = []
    matches = RegularExpression.matches

    def counted(expression: RegularExpression, text: str) -> bool:
        found.append(expression.cost(text))
        return matches(expression, text)

    monkeypatch.setattr(RegularExpression, "matches", counted)
    return found


def put(state: CoordinatorState, name: str) -> None:
    topic_id = name.encode()[-16:].rjust(16, b"-")
    state.topics[topic_id] = records_pb.TopicRecord(topic_id=topic_id, name=name)
    state.topic_ids[name] = topic_id
    changed(state, name)


def drop(state: CoordinatorState, name: str) -> None:
    del state.topics[state.topic_ids.pop(name)]
    changed(state, name)


def changed(state: CoordinatorState, name: str) -> None:
    state.topics_generation += 1
    state.topics_changed.append(name)


def state_with(names: list[str]) -> CoordinatorState:
    state = CoordinatorState()
    for name in names:
        put(state, name)
    return state


def test_an_ordinary_expression_is_looked_up_at_once() -> None:
    found = TopicExpressions(state_with(NAMES)).topics(r"shop\..*-v1", None, 0)
    assert found == tuple(NAMES)


def test_a_costly_lookup_goes_on_as_time_passes(steps: list[int]) -> None:
    expressions = TopicExpressions(state_with(NAMES))
    now_ms, asked, done = 0, 0, 0
    while (found := expressions.topics(COSTLY, None, now_ms)) is None:
        once = STEPS_AT_ONCE if asked == 0 else STEPS_PER_SECOND
        assert sum(steps) - done < once + 1_000_000
        assert expressions.topics(COSTLY, None, now_ms) is None and len(steps) < len(NAMES)
        done, now_ms, asked = sum(steps), now_ms + 1_000, asked + 1
    assert asked >= 2 and found == tuple(NAMES)
    assert len(steps) == len(NAMES)  # each name once


def test_a_clock_that_was_set_back_gives_no_steps_and_takes_none(steps: list[int]) -> None:
    expressions = TopicExpressions(state_with(NAMES))
    expressions.topics(COSTLY, None, 1_000_000)
    done = len(steps)
    expressions.topics(COSTLY, None, 0)
    assert len(steps) == done
    expressions.topics(COSTLY, None, 1_000)
    assert len(steps) > done


def test_costly_expressions_of_others_do_not_delay_an_ordinary_one() -> None:
    expressions = TopicExpressions(state_with(NAMES))
    for number in range(20):
        assert expressions.topics(f"{COSTLY}|{number}", None, 0) is None
    assert expressions.topics("shop.*", None, 1_000) == tuple(NAMES)


def test_lookups_take_turns_and_compare_each_name_once(steps: list[int]) -> None:
    expressions = TopicExpressions(state_with(NAMES))
    regexes = [COSTLY, COSTLY + "|a", COSTLY + "|b"]
    ends: dict[str, int] = {}
    for now_ms in range(0, 60_000, 1_000):
        for regex in regexes:
            if expressions.topics(regex, None, now_ms) is not None:
                ends.setdefault(regex, now_ms)
    assert len(ends) == 3 and max(ends.values()) - min(ends.values()) <= 2_000
    assert len(steps) == 3 * len(NAMES)


def test_an_expression_that_no_group_demands_any_more_is_forgotten(steps: list[int]) -> None:
    expressions = TopicExpressions(state_with(NAMES))
    for number in range(EXPRESSIONS_REMEMBERED):
        expressions.topics(f"{COSTLY}|{number}", None, 0)
    done = len(steps)
    assert expressions.topics("shop.*", None, DEMAND_LASTS_MS + 1) == tuple(NAMES)
    assert len(steps) == done + len(NAMES)


def test_alternatives_of_200_names_are_looked_up_in_one_turn(steps: list[int]) -> None:
    names = [NAME.format(number) for number in range(10_000)]
    regex = "|".join(f"shop.orders.team-{number:03}" for number in range(200))
    assert TopicExpressions(state_with(names)).topics(regex, None, 0) == ()
    assert len(steps) == 10_000 and sum(steps) < STEPS_OF_TURN


def test_only_unfinished_expressions_are_looked_up_again_with_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CoordinatorDriver({"group.consumer.assignment.interval.ms": "0"})
    for number in range(3_000):
        put(driver.state, f"other-{number:0200}")
    send(driver, join_request("a", regex="other.*"))
    send(driver, join_request("b", regex=COSTLY))
    asked: list[str] = []
    topics = TopicExpressions.topics

    def recorded(self: TopicExpressions, regex: str, client: Client | None, now_ms: int) -> tuple[str, ...] | None:
        asked.append(regex)
        return topics(self, regex, client, now_ms)

    monkeypatch.setattr(TopicExpressions, "topics", recorded)
    for member in "ab":
        send(driver, request_of(member, driver.state.consumer_groups["group"].current[member].member_epoch))
    assert asked == [COSTLY, COSTLY]


def test_lookups_that_topics_change_meanwhile_find_what_a_lookup_at_the_end_finds() -> None:
    random = Random(7)
    state = state_with(NAMES[:2_000])
    expressions = TopicExpressions(state)
    rest = NAMES[2_000:]
    regexes = [COSTLY, "(?:.?a?){200}.*", r"shop\..*[05]\.events-v1", "nothing"]
    for now_ms in range(0, 20_000, 1_000):
        for _ in range(random.randrange(30)):
            put(state, rest.pop())
            gone = random.choice(sorted(state.topic_ids))
            drop(state, gone)
            if random.random() < 0.5:
                put(state, gone)
        for regex in random.sample(regexes, 3):
            expected = tuple(sorted(name for name in state.topic_ids if re.fullmatch(short(regex), name)))
            assert expressions.topics(regex, None, now_ms) in (None, expected)
    for now_ms in range(20_000, 60_000, 1_000):
        found = [expressions.topics(regex, None, now_ms) for regex in regexes]
    assert [len(names or ()) for names in found[:2]] == [len(state.topic_ids)] * 2
    assert None not in found


def short(regex: str) -> str:
    """One that finds the same and that Python's module can match."""
    return ".*" if regex.startswith(("(.?", "(?:.?")) else regex


def test_a_member_gets_its_topics_with_the_heartbeat_after_the_lookup() -> None:
    driver = CoordinatorDriver({"group.consumer.assignment.interval.ms": "0"})
    for name in NAMES[:2]:
        driver.create_topic(name)
    for number in range(1_500):
        put(driver.state, f"other-{number:0200}")
    answer = send(driver, join_request("a", [NAMES[0]], regex=COSTLY))
    assert len(assigned(answer) or ()) == 1
    group = driver.state.consumer_groups["group"]
    for _ in range(30):
        if group.expressions:
            break
        driver.now_ms += 1_000
        send(driver, request_of("a", group.current["a"].member_epoch))
        group = driver.state.consumer_groups["group"]
    (known,) = group.expressions.values()
    assert set(NAMES[:2]) < set(known.topics)


def test_expressions_that_are_not_looked_up_yet_count_for_the_limit() -> None:
    driver = CoordinatorDriver({})
    for number in range(3_000):
        put(driver.state, f"other-{number:0200}")
    for number in range(EXPRESSIONS_LIMIT):
        send(driver, join_request(f"m{number}", regex=f"{COSTLY}|{number}"))
    assert not driver.state.consumer_groups["group"].expressions
    with pytest.raises(KafkaError, match="no more than 100"):
        send(driver, join_request("another", regex="another"))
    send(driver, join_request("same", regex=f"{COSTLY}|0"))


def test_a_stored_expression_that_is_too_large_now_keeps_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions accepted larger ones."""
    driver = CoordinatorDriver({"group.consumer.assignment.interval.ms": "0"})
    driver.create_topic("a")
    with monkeypatch.context() as patch:
        patch.setattr("kshare_coordinator.machine.regular_expressions.EXPRESSION_MEMORY_BYTES", 1 << 20)
        send(driver, join_request("m", regex=LARGE))
    driver.restart()
    driver.create_topic("b")
    epoch = driver.state.consumer_groups["group"].current["m"].member_epoch
    send(driver, request_of("m", epoch))
    effects = list(driver.effects)
    driver.create_topic("c")
    send(driver, request_of("m", epoch))
    told = [effect for effect in [*effects, *driver.effects] if isinstance(effect, ExpressionRefused)]
    assert [(each.group_id, each.regex) for each in told] == [("group", LARGE)]  # once
    topics = driver.state.consumer_groups["group"].expressions[LARGE].topics
    assert "a" in topics and "b" not in topics
    with pytest.raises(KafkaError, match="not a valid regular expression"):
        send(driver, join_request("n", regex="b" + LARGE[4:]))
