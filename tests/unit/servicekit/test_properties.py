"""The syntax of Java's Properties.load, after its documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_servicekit.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a\n! b\n  # c\n\n \t\n", {}),
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t1", {"a": "1"}),
        ("  a  =  1  ", {"a": "1  "}),
        ("a = = 1", {"a": "= 1"}),
        ("a : = 1", {"a": "= 1"}),
        ("a==1", {"a": "=1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a=1\na=2\nb=3", {"a": "2", "b": "3"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("fruits  apple, banana, \\\n        cherry", {"fruits": "apple, banana, cherry"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\n2", {"a": "1\\2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\ b\\=c\\:d = e", {"a b=c:d": "e"}),
        ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        ("caf\\u00e9=\\u00E9t\\u00e9", {"café": "été"}),
        ("\\\na=1", {"a": "1"}),
        ("share.record.lock.duration.ms=15000\n", {"share.record.lock.duration.ms": "15000"}),
    ],
)
def test_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "a=1\nb=\\u", "a=1\n\\uXYZW=1"])
def test_a_bad_escape_is_named_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"line 2: .*four hexadecimal digits"):
        parse_properties(text)


def escaped(text: str) -> str:
    """As Properties.store writes it."""
    named = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    return "".join(
        named.get(character, f"\\{character}" if character in "\\ =:#!" else character) for character in text
    )


@given(st.dictionaries(st.text(), st.text()), st.sampled_from(["=", ":", " ", " = "]))
def test_reads_what_java_writes(content: dict[str, str], separator: str) -> None:
    text = "\n".join(f"{escaped(key)}{separator}{escaped(value)}" for key, value in content.items() if key)
    assert parse_properties(text) == {key: value for key, value in content.items() if key}
