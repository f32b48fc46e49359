"""The source of hostile requests: what it says of a request is so, and a seed gives the same ones."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from support.hostile.bursts import Bursts
from support.hostile.corpus import FoundFrames, corpus_frames, corpus_requests
from support.hostile.kafka_messages import Vocabulary
from support.hostile.requests import (
    CORPUS_SHARE,
    Damage,
    HostileRequest,
    RequestSource,
    decoded,
    key_and_version,
    served_versions,
)

VOCABULARY = Vocabulary(topics=("a", "b"), topic_ids=(bytes(16), bytes([1]) * 16))


def drawn(seed: int, count: int) -> list[HostileRequest]:
    source = RequestSource(random.Random(seed), VOCABULARY, corpus=corpus_frames())
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


def test_the_frames_of_the_corpus_are_whole_and_their_answers_are_checked() -> None:
    requests = list(corpus_requests())
    assert requests
    assert all(int.from_bytes(each.frame[:4]) == len(each.frame) - 4 for each in requests)
    assert all(each.is_known for each in requests)
    assert {each.is_readable: each.damage for each in requests}[True] is Damage.NONE
    readable = {each.api_key for each in requests if each.is_readable}
    assert 3 in readable, "the Metadata request whose answer had a null where its version has none"


def test_requests_are_made_of_frames_of_the_corpus() -> None:
    count = 4_000
    made = [each for each in drawn(2, count) if each.damage is Damage.CORPUS]
    assert count * CORPUS_SHARE / 2 < len(made) < count * CORPUS_SHARE * 2
    assert all(int.from_bytes(each.frame[:4]) == len(each.frame) - 4 for each in made)
    assert all(int.from_bytes(each.frame[8:12]) == each.correlation_id for each in made)
    assert all(key_and_version(each.frame) == (each.api_key, each.version) for each in made)
    originals = {frame[12:] for frame in corpus_frames()}
    changed = [each for each in made if each.frame[12:] not in originals]
    assert 0 < len(changed) < len(made)
    assert {each.is_readable for each in changed} == {True, False}, "some are read as far as the handlers"
    only_metadata = RequestSource(random.Random(3), VOCABULARY, (3,), corpus_frames())
    assert all(only_metadata.next_request(number).api_key == 3 for number in range(300))


def test_a_request_of_a_run_is_drawn_again_by_its_correlation_id() -> None:
    def bursts() -> Bursts:
        return Bursts(random.Random(9), VOCABULARY, corpus=corpus_frames(), first_id=1_000)

    supply = bursts()
    requests = [request for _ in range(200) for request in supply.next_burst()]
    wanted = requests[-1]
    assert bursts().again(wanted.correlation_id, len(requests)) == wanted
    assert bursts().again(999, len(requests)) is None


def test_failing_frames_are_written_in_the_form_of_the_corpus(tmp_path: Path) -> None:
    found = FoundFrames(tmp_path / "found")
    assert not found.report() and not found.folder.exists()
    frames = [each.frame for each in drawn(4, 3)]
    for frame in frames:
        found.add("metadata", frame, "what went wrong,\nin two lines # with a hash")
    assert corpus_frames(found.folder) == frames
    assert str(found.folder) in found.report()[0]
