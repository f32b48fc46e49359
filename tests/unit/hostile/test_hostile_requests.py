"""The source of hostile requests: what it says of a request is so, and a seed gives the same ones."""

from __future__ import annotations

import random
from collections import Counter

from support.hostile.corpus import corpus_requests
from support.hostile.kafka_messages import Vocabulary
from support.hostile.requests import Damage, HostileRequest, RequestSource, decoded, served_versions
from support.hostile.role_logs import lines_in_a_second, unexpected_lines

VOCABULARY = Vocabulary(topics=("a", "b"), topic_ids=(bytes(16), bytes([1]) * 16))


def drawn(seed: int, count: int) -> list[HostileRequest]:
    source = RequestSource(random.Random(seed), VOCABULARY)
    return [source.next_request(number) for number in range(count)]


def test_undamaged_requests_are_read_and_each_version_and_damage_is_met() -> None:
    requests = drawn(1, 5 * len(served_versions()))
    assert {(each.api_key, each.version) for each in requests} == set(served_versions())
    assert {each.damage for each in requests} == set(Damage)
    unreadable = [each for each in requests if each.damage is Damage.NONE and decoded(each) is None]
    assert not unreadable
    by_damage = Counter(each.damage for each in requests if each.is_readable)
    assert by_damage[Damage.FIELD] and by_damage[Damage.FLIPPED_BITS], "some damaged ones reach the handlers"
    assert not by_damage[Damage.CUT_OFF]


def test_a_seed_has_the_same_requests_and_another_seed_others() -> None:
    def shapes(seed: int) -> list[tuple[int, int, Damage]]:
        return [(each.api_key, each.version, each.damage) for each in drawn(seed, 300)]

    assert shapes(7) == shapes(7) != shapes(8)


def test_the_corpus_is_there() -> None:
    requests = list(corpus_requests())
    assert requests
    assert all(int.from_bytes(each.frame[:4]) == len(each.frame) - 4 for each in requests)


def test_lines_that_should_not_be_in_a_log() -> None:
    log = "\n".join(
        f"gateway | 2026-11-26T01:00:0{second}.000000Z [{level}] text"
        for second, level in ((1, "info     "), (1, "warning  "), (2, "error    "), (2, "info     "), (2, "info     "))
    )
    assert len(unexpected_lines(log)) == 1
    assert len(unexpected_lines(f"{log}\ngateway | Traceback (most recent call last):")) == 2
    assert lines_in_a_second(log) == 3
