"""Each value of the chart is described in its schema, in the words of values.yaml."""

from __future__ import annotations

import pytest

from support.house.chart_schema import SCHEMA, comments, described, wanted


def test_the_schema_has_the_words_of_the_values() -> None:
    text = SCHEMA.read_text(encoding="utf-8")
    assert text == wanted(), "PYTHONPATH=tests .venv/bin/python -m support.house.chart_schema writes it"


def test_comments_belong_to_the_key_below_at_the_same_depth() -> None:
    text = "# Of a,\n# in two lines.\na:\n  # Of b.\n  b: {c: 1}\n\n# Alone.\n\nd: 1\n  # Deeper.\ne: 2\n"
    assert comments(text) == {"a": "Of a, in two lines.", "a.b": "Of b."}


def test_a_value_without_words_is_named() -> None:
    with pytest.raises(KeyError, match="unheardOf"):
        described({"properties": {"unheardOf": {"type": "string"}}}, {})
