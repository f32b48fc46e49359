"""`kshare metrics --describe`, the document that it writes, and where `kshare up` shows metrics."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kshare.addresses import Address
from kshare.commands.metrics import description
from kshare.failure import CommandFailed
from kshare.main import app
from kshare.up.metrics_plan import plan_metrics
from kshare_coordinator import metrics as coordinator
from kshare_gateway import metrics as gateway
from kshare_leader import metric_families as leader
from kshare_servicekit import process_metrics
from kshare_servicekit.metric_families import Family, Kind
from kshare_share_coordinator import metrics as share_coordinator
from kshare_share_coordinator.reassignment import metrics as moving
from support.environment.free_ports import free_port

DOCUMENT = Path(__file__).parents[3] / "deploy" / "observability" / "metrics.md"
MODULES = {
    "coordinator_": (coordinator,),
    "gateway_": (gateway,),
    "leader_": (leader,),
    "share_coordinator_": (share_coordinator, moving),
    "": (process_metrics,),
}
FAMILIES = [family for modules in MODULES.values() for family in modules[0].FAMILIES]


def test_the_document_is_what_the_code_says() -> None:
    text = description()
    assert DOCUMENT.read_text(encoding="utf-8") == text, (
        "run: kshare metrics --describe > deploy/observability/metrics.md"
    )
    assert CliRunner().invoke(app, ["metrics", "--describe"]).stdout == text
    for family in FAMILIES:
        assert text.count(f"| `{family.full_name}` |") == 1


def test_no_family_is_left_out_of_the_tables() -> None:
    for modules in MODULES.values():
        for module in modules:
            named = [value for value in vars(module).values() if isinstance(value, Family)]
            assert [family.name for family in named if family not in FAMILIES] == []


def test_names_say_role_and_unit() -> None:
    for prefix, modules in MODULES.items():
        for family in modules[0].FAMILIES:
            assert re.fullmatch(r"[a-z][a-z0-9_]+", family.name) and not family.name.endswith("_total")
            assert family.name.startswith(prefix)
            assert family.help.endswith(".") and "|" not in family.help
            is_duration = family.kind is Kind.HISTOGRAM and ("duration" in family.name or "lag" in family.name)
            assert not is_duration or family.name.endswith("_seconds")


def test_a_command_without_a_task_says_what_to_do() -> None:
    with pytest.raises(CommandFailed, match="--describe"):
        CliRunner().invoke(app, ["metrics"], catch_exceptions=False)


def test_each_process_gets_the_next_port() -> None:
    first = free_port()
    try:
        planned = plan_metrics(Address("127.0.0.1", first), ["coordinator"])
    except CommandFailed:
        pytest.fail("the port was free")
    assert planned == {"coordinator": Address("127.0.0.1", first)}
    anywhere = plan_metrics(Address("127.0.0.1", 0), ["a", "b", "c"], taken=[20_000])
    ports = [address.port for address in anywhere.values()]
    assert len({*ports, 0, 20_000}) == 5


def test_a_port_that_is_taken_or_does_not_exist_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        for names, ports in (
            (["a"], ""),
            (["a", "b"], " and the port after it"),
            ([*"abc"], " and the 2 ports after it"),
        ):
            option = rf"metrics of a at 127.0.0.1:{port}: .* \(--metrics-listen 127.0.0.1:{port}{ports}\)"
            with pytest.raises(CommandFailed, match=option):
                plan_metrics(Address("127.0.0.1", port), names)
    with pytest.raises(CommandFailed, match="the port is above 65535"):
        plan_metrics(Address("127.0.0.1", 65_535), ["a", "b"])
    taken = free_port()
    with pytest.raises(CommandFailed, match="another listener has this port"):
        plan_metrics(Address("127.0.0.1", taken), ["a"], taken=[taken])
