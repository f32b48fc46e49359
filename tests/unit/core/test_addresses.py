"""Addresses have one text each: that of Java's InetAddress.getHostAddress."""

from __future__ import annotations

import pytest

from kshare_core.security.addresses import address_text, is_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::", "0:0:0:0:0:0:0:0"),
        ("2001:0DB8::00ff:0", "2001:db8:0:0:0:0:ff:0"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("0:0:0:0:0:ffff:c000:201", "192.0.2.1"),
        ("::192.0.2.1", "0:0:0:0:0:0:c000:201"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
    ],
)
def test_each_address_has_one_text(text: str, expected: str) -> None:
    assert address_text(text) == expected
    assert address_text(expected) == expected
    assert is_address(text)


@pytest.mark.parametrize("text", ["", "*", "localhost", "10.0.0", "10.0.0.1:9092", "[::1]", "%eth0", "fd00:::1"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert address_text(text) == text
    assert not is_address(text)
