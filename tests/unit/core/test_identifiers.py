"""Where a share-partition's state lies, against Java's definition written out; keys that are kept share their names."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare_core.identifiers import SharePartitionKey, key_to_keep, parse_topic_id, state_partition_of, topic_id_text

group_ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
topic_ids = st.binary(min_size=16, max_size=16)
partitions = st.one_of(st.integers(0, 12), st.integers(0, (1 << 31) - 1))


def place_in_java(key: SharePartitionKey, count: int) -> int:
    """Utils.abs(String.hashCode()) % count, one UTF-16 unit after the other."""
    value = 0
    for unit in memoryview(str(key).encode("utf-16-le")).cast("H"):
        value = (value * 31 + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % count


@given(st.builds(SharePartitionKey, group_ids, topic_ids, partitions), st.integers(1, 1_000))
@example(SharePartitionKey("\U0001f600", bytes(16), 10), 50)
def test_a_place_is_javas(key: SharePartitionKey, count: int) -> None:
    assert state_partition_of(key, count) == place_in_java(key, count)


def test_the_hash_that_has_no_positive_counterpart() -> None:
    """Integer.MIN_VALUE, which Utils.abs makes 0; the group id is worked out backwards from it."""
    key = smallest_hash()
    assert place_in_java(key, 50) == state_partition_of(key, 50) == 0
    assert place_in_java(key, 7) == state_partition_of(key, 7) == 0


def smallest_hash() -> SharePartitionKey:
    """The group id whose letters, as digits of base 31, are what the rest of the key leaves to be reached."""
    rest = ":" + str(SharePartitionKey("", bytes(16), 0))[1:]
    power, tail = pow(31, len(rest), 1 << 32), 0
    for unit in rest.encode("utf-16-le")[::2]:
        tail = (tail * 31 + unit) & 0xFFFFFFFF
    wanted = (((1 << 31) - tail) * pow(power, -1, 1 << 32)) & 0xFFFFFFFF
    return SharePartitionKey(_as_letters(wanted + (31 << 32)), bytes(16), 0)


def _as_letters(number: int) -> str:
    """The text whose hash is `number` before it is cut to 32 bits; all but the first character are letters."""
    letters: list[str] = []
    while number > ord("z"):
        letter = number % 31 + 31 * ((ord("a") - number % 31 + 30) // 31)
        letters.append(chr(letter))
        number = (number - letter) // 31
    return "".join([chr(number), *reversed(letters)])


def test_keys_that_are_kept_share_their_names() -> None:
    one = key_to_keep("a group" + str(1), bytes(range(16)), 1)
    other = key_to_keep("a group" + str(1), bytes(bytearray(range(16))), 2)
    assert one == SharePartitionKey("a group1", bytes(range(16)), 1)
    assert one.group_id is other.group_id
    assert one.topic_id is other.topic_id


@given(topic_ids)
def test_a_topic_id_is_parsed_from_its_text(topic_id: bytes) -> None:
    assert parse_topic_id(topic_id_text(topic_id)) == topic_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A" * 21,
        "A" * 23,
        "A" * 22 + "==",
        "+" + "A" * 21,
        "/" + "A" * 21,
        "A" * 21 + "\n",
        "A" * 22 + "\n",
        "é" * 22,
    ],
)
def test_a_topic_id_of_other_characters_or_lengths_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="22 characters of URL-safe base64"):
        parse_topic_id(text)
