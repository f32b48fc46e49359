"""Numbers beyond Kafka's protocol and arguments that are not UTF-8: one line, a usage, and exit code 2."""

from __future__ import annotations

import sys

import pytest

from kshare.arguments import argument_that_is_not_utf8
from kshare.commands.groups.end_acquisitions import parse_offset_range
from kshare.commands.partitions import parse_partitions
from kshare.failure import CommandFailed
from kshare.main import main
from kshare_core.whole_numbers import LARGEST_INT, LARGEST_LONG, whole_number

NOT_UTF8 = "\udcff"
"""What Python makes of the byte 0xff in an argument."""
BEYOND_INT, BEYOND_LONG = str(LARGEST_INT + 1), str(LARGEST_LONG + 1)
BEYOND_PARSING = 4_400 * "9"
"""Python parses at most 4,300 digits."""
NOBODY = ("--coordinator", "127.0.0.1:1")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr."""
    monkeypatch.setattr(sys, "argv", ["kshare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("text", ["0", "007", "2147483647", "0002147483647"])
def test_whole_numbers(text: str) -> None:
    assert whole_number(text, LARGEST_INT) == int(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "x", "\u0661", BEYOND_INT, BEYOND_PARSING])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole_number(text, LARGEST_INT) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("partitions", "move", "orders:0", "--to", BEYOND_INT),
        ("partitions", "drain", BEYOND_INT),
        ("partitions", "give-up", BEYOND_INT),
        ("state", "drain", BEYOND_INT),
        ("state", "give-up", BEYOND_INT),
        ("topics", "create", "big", "--partitions", BEYOND_INT),
        ("groups", "release", "g", "--topic", "t", "--offsets", "0", "--partition", BEYOND_INT),
        ("groups", "list", "--watch", "--interval", "inf"),
        ("groups", "list", "--watch", "--interval", "1e300"),
        ("groups", "list", "--watch", "--interval", "nan"),
        ("top", "--interval", "inf"),
    ],
)
def test_a_number_out_of_range_is_one_line_and_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, (first, second) = run(monkeypatch, capsys, *arguments)
    assert code == 2 and first.startswith("kshare: Invalid value for") and second.startswith("Usage: kshare ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("partitions", "move", f"orders:{BEYOND_INT}", "--to", "1"), "partitions must be TOPIC:PARTITION"),
        (("partitions", "move", f"orders:{BEYOND_PARSING}", "--to", "1"), "partitions must be TOPIC:PARTITION"),
        (("nodes", "--coordinator", f"localhost:{BEYOND_PARSING}"), "--coordinator must be HOST:PORT"),
        (("topics", "list", "--bootstrap", f"localhost:{BEYOND_PARSING}"), "--bootstrap must be HOST:PORT"),
        (("redrive", "--offsets", f"t:0:0-{BEYOND_LONG}"), "offsets must be TOPIC:PARTITION:FIRST-LAST"),
        (("redrive", "--offsets", f"t:{BEYOND_INT}:0"), "offsets must be TOPIC:PARTITION:FIRST-LAST"),
        (("redrive", "--offsets", f"t:{BEYOND_PARSING}:0"), "offsets must be TOPIC:PARTITION:FIRST-LAST"),
        (("redrive", "t", "--rate", "inf"), "the rate must be finite"),
        (("audit", "--lines", "x", "--group-limit", f"g={BEYOND_PARSING}"), "--group-limit must be GROUP=LIMIT"),
        (("groups", "reset", "g", "--topic", "t", "--to-datetime", "1969-12-31"), "must not be before 1970"),
        (("topics", "create", NOT_UTF8), "is not UTF-8"),
        (("topics", "create", "t", "--config", f"{NOT_UTF8}=a"), "is not UTF-8"),
        (("topics", "create", "t", "--config", f"a={NOT_UTF8}"), "is not UTF-8"),
        (("partitions", "list", NOT_UTF8, *NOBODY), "is not UTF-8"),
        (("partitions", "move", f"{NOT_UTF8}:0", "--to", "1", *NOBODY), "is not UTF-8"),
        (("state", "backup", NOT_UTF8, "--share-coordinator", "127.0.0.1:1"), "is not UTF-8"),
        (("redrive", "t", "--key", NOT_UTF8), "is not UTF-8"),
        (("up", "--data-dir", "data", "--listen", f"{NOT_UTF8}:1"), "--listen must be HOST:PORT"),
        (("topics", "list", "--bootstrap", f"{NOT_UTF8}:1"), "--bootstrap must be HOST:PORT"),
    ],
)
def test_an_argument_that_no_command_can_use_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], line: str
) -> None:
    code, lines = run(monkeypatch, capsys, *arguments)
    assert code == 2 and len(lines) == 1 and lines[0].startswith("kshare: ") and line in lines[0]


def test_the_largest_offset_and_partition() -> None:
    assert parse_offset_range(f"0-{LARGEST_LONG}") == (0, LARGEST_LONG)
    for text in (BEYOND_LONG, f"0-{BEYOND_LONG}", f"{BEYOND_LONG}-1", f"0-{BEYOND_PARSING}", "0-", "-0"):
        with pytest.raises(CommandFailed, match="--offsets must be FIRST-LAST"):
            parse_offset_range(text)
    assert parse_partitions(f"t:{LARGEST_INT}") == [("t", LARGEST_INT)]


def error_of(text: str, encoding: str) -> UnicodeEncodeError:
    with pytest.raises(UnicodeEncodeError) as failed:
        text.encode(encoding)
    return failed.value


def test_the_argument_is_told_and_no_other_cause_is_taken_for_one() -> None:
    assert argument_that_is_not_utf8(error_of(f"orders{NOT_UTF8}", "utf-8")) == "'orders\\udcff'"
    assert argument_that_is_not_utf8(error_of("…", "ascii")) is None, "an output that cannot show the text"
    assert argument_that_is_not_utf8(error_of("\ud800", "utf-8")) is None, "of a record in JSON"
