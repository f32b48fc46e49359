"""The compiled readers and writers: their lines in tracebacks."""

from __future__ import annotations

import linecache
import traceback

from kshare_wire.message_source import Source


def test_a_traceback_shows_the_line_of_a_compiled_function_that_failed() -> None:
    source = Source({})
    with source.block("def divided(number):"):
        source.line("share = 1 / number  # of one")
        source.line("return share")
    (divided,) = source.compiled("divided")
    linecache.checkcache()  # what a long-lived process does at each traceback
    assert divided(2) == 0.5
    try:
        divided(0)
    except ZeroDivisionError as error:
        assert "share = 1 / number  # of one" in "".join(traceback.format_exception(error))
    else:
        raise AssertionError("it must fail")
