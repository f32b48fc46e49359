"""Property files of a process: Java's syntax, unknown keys, keys without effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.configs import InvalidConfig, process_configs, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a comment\n! another\n\n  \n", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a: 1\nb 2\n  c=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=", {"a": ""}),
        ("a=1=2", {"a": "1=2"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        ("a=c:\\\\x", {"a": "c:\\x"}),
        ("a\\=b=\\u0041", {"a=b": "A"}),
        ("a=1 # not a comment", {"a": "1 # not a comment"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert read_properties(text) == expected


@pytest.mark.parametrize("text", ["a=1\n=2", "a=1\na=\\u12"])
def test_a_line_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(InvalidConfig, match="line 2"):
        read_properties(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_properties(text)
    except InvalidConfig:
        return
    assert all(isinstance(value, str) for value in found.values())


def test_keys_without_effect_are_taken_with_a_warning() -> None:
    configs, warnings = process_configs({"num.io.threads": "4", "num.partitions": "3", "kshare.node.lease.ms": "5000"})
    assert configs.integer("num.partitions") == 3 and configs.integer("kshare.node.lease.ms") == 5000
    assert len(warnings) == 1 and "num.io.threads" in warnings[0]


def test_values_of_keys_without_effect_are_checked_all_the_same() -> None:
    with pytest.raises(InvalidConfig, match=r"num\.io\.threads"):
        process_configs({"num.io.threads": "none"})


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"group\.share\.session\.timeout\.ms"):
        process_configs({"group.share.session.timeout.ms": "70000"})
