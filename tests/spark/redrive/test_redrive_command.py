"""`kshare redrive`: refusals, output, and that it needs no Spark for a few records."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kshare.commands.redrive import client_properties, show_account
from kshare.failure import BAD_USE, CommandFailed
from kshare.main import app
from kshare_kafka_client.redrive.request import Account

NOWHERE = ["--bootstrap", "127.0.0.1:1"]


def refusal(*arguments: str) -> CommandFailed:
    failure = CliRunner().invoke(app, ["redrive", *NOWHERE, *arguments]).exception
    assert isinstance(failure, CommandFailed), failure
    return failure


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "say what to redrive: dead-letter topics, --offsets TOPIC:PARTITION:FIRST-LAST or --archived GROUP"),
        (["dlq.a", "--archived", "workers"], "say what to redrive"),
        (["--offsets", "orders"], "--offsets: offsets must be TOPIC:PARTITION:FIRST-LAST, found 'orders'"),
        (["dlq.a", "--rate", "0"], "the rate must be above 0 records/s, found 0"),
        (["dlq.a", "--since", "yesterday"], "--since must be a time like 2026-11-21T18:00:00, found 'yesterday'"),
        (
            ["dlq.a", "--since", "2026-11-21T18:00+01:00", "--until", "2026-11-21T17:00"],
            "--since must be before --until",
        ),
        (["dlq.a", "--engine", "flink"], "--engine must be one of auto, direct, spark, found 'flink'"),
        (["dlq.a", "--engine", "direct", "--where", "true"], "an SQL expression needs the engine spark"),
        (["dlq.a", "--kafka", "secret"], "--kafka must be NAME=VALUE"),
        (["dlq.a", "--kafka", "no.such=1"], 'No such configuration property: "no.such"'),
        (["dlq.a", "--command-config", "/nothing/here"], "--command-config /nothing/here"),
    ],
)
def test_bad_use_is_refused_with_a_word_about_what_is_right(arguments: list[str], text: str) -> None:
    failure = refusal(*arguments)
    assert text in str(failure)
    assert failure.exit_code == BAD_USE


@pytest.mark.parametrize("arguments", [["--engine", "spark"], ["--where", "delivery_count > 3"]])
def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    failure = refusal("dlq.a", *arguments)
    assert "the engine spark needs PySpark and Java 17: install kshare-pipeline" in str(failure)
    assert failure.exit_code == BAD_USE


def test_the_direct_engine_needs_neither_spark_nor_arrow(tmp_path: Path) -> None:
    script = tmp_path / "without_spark.py"
    script.write_text(
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['pyspark', 'pyarrow', 'pandas']))\n"
        "from kshare.main import main\n"
        "sys.argv = ['kshare', 'redrive', '--bootstrap', '127.0.0.1:1', '--kafka', 'no.such=1', 'dlq.a']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (BAD_USE, "")
    assert "No such configuration property" in ended.stderr


def test_the_command_line_is_stronger_than_the_file() -> None:
    found = client_properties("a:1", ["security.protocol=ssl", "x=a=b"], {"security.protocol": "plaintext", "y": "1"})
    assert (found["bootstrap.servers"], found["security.protocol"], found["x"], found["y"]) == (
        "a:1",
        "ssl",
        "a=b",
        "1",
    )


def shown(account: Account, *, dry_run: bool) -> str:
    output = StringIO()
    show_account(account, Console(file=output, width=120), dry_run=dry_run)
    return output.getvalue()


def test_the_account_is_shown_with_what_could_not_move() -> None:
    account = Account(already_moved=7)
    account.add_moved("orders", "rejected", 1200)
    account.add_moved("bills", "delivery_count_limit", 3)
    account.add_problem("topic gone does not exist", 2)
    account.first_ones.append(
        {"from": "dlq.a:0:5", "to": "orders:1", "group": "workers", "reason": "rejected", "key": None, "value": "[red]"}
    )
    text = shown(account, dry_run=True)
    assert text.splitlines()[-2:] == [
        "cannot move 2 records: topic gone does not exist",
        "would move 1203 records; an earlier run moved 7",
    ]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["bills", "delivery_count_limit", "3"],
        ["orders", "rejected", "1200"],
        ["dlq.a:0:5", "orders:1", "workers", "", "[red]"],
    ]
    assert shown(Account(), dry_run=False) == "moved 0 records; an earlier run moved 0\n"
