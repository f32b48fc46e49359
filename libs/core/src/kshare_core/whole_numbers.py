"""Whole numbers within a text of a user, up to the largest of the protocol's types."""

from __future__ import annotations

LARGEST_INT = 2**31 - 1
"""Of node ids and partitions."""
LARGEST_LONG = 2**63 - 1
"""Of offsets."""


def whole_number(text: str, largest: int) -> int | None:
    """The number that a text of digits is, also with zeros in front; None for others and for one above the largest."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(largest)):  # Python refuses to parse more than 4,300 digits
        return None
    number = int(digits)
    return number if number <= largest else None
