"""The text of a log line about an exception."""

from __future__ import annotations

import json
import logging

import pytest

from kshare_core.log_fields import log_fields
from kshare_servicekit import logs
from kshare_servicekit.logs import LogFormat


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_local_variables_are_not_printed(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure(role="gateway", node_id=1, log_format=log_format)
        _fail_beside("kept" + "-secret")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    printed = capsys.readouterr().err
    assert "ValueError: broken" in printed
    assert "_fail_beside" in printed
    assert "kept-secret" not in printed


def _fail_beside(password: str) -> None:
    environment = {"PASSWORD": password}
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("kshare").exception("failed beside %d variables", len(environment))


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_what_a_client_sent_forges_no_line_and_is_not_long(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure(role="gateway", node_id=1, log_format=log_format)
        name = "group\n2026-11-26T00:00:00Z [error    ] forged \x1b[2J\0" + "x" * 32_000
        with log_fields(group=name):
            logging.getLogger("kshare").info("DescribeGroups of %s failed", name)
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert not any(character in printed for character in "\0\x1b")
    assert len(printed) < 3 * logs.TEXT_LIMIT


def test_lines_of_a_process_with_all_roles_name_the_role_whose_code_logs_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    nodes = [("coordinator", 1), ("share-coordinator", 1), ("share-coordinator", 2), ("gateway", 3)]
    names = [
        "kshare_coordinator.node",
        "kshare_share_coordinator.state_log",
        "kshare_gateway",
        "kshare_rpc.call_server",
    ]
    try:
        logs.configure_all_roles(nodes, log_format="json")
        for name in names:
            logging.getLogger(name).info("started")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines] == names
    assert [(line.get("role"), line.get("node_id")) for line in lines] == [
        ("coordinator", 1),
        ("share-coordinator", None),
        ("gateway", 3),
        (None, None),
    ]
