"""A role's process from its flags to its exit code, run for real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_runtime.rocks_store import RocksStore
from kshare_servicekit.process import write_ready_file
from kshare_servicekit.properties import parse_properties

EXAMPLE = Path(__file__).parents[2] / "support/servicekit/example_role.py"
TIMEOUT_S = 20


def command(mode: str, directory: Path, *flags: str) -> list[str]:
    return [
        *(sys.executable, str(EXAMPLE), mode, "--node-id", "7", "--log-format", "json"),
        *("--data-dir", str(directory / "data"), "--ready-file", str(directory / "run" / "ready"), *flags),
    ]


@contextmanager
def role(mode: str, directory: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command(mode, directory, *flags), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def log_until(process: subprocess.Popen[str], event: str) -> list[dict[str, object]]:
    """The log's lines up to the one with `event`, which ends the wait."""
    assert process.stderr is not None
    found = []
    for line in process.stderr:
        found.append(json.loads(line))
        if found[-1]["event"] == event:
            return found
    raise AssertionError(f"no {event!r} in {found}")


async def acknowledge(address: str) -> int:
    channel = GrpcNetwork().connect(address)
    answer, _ = await channel.call(SHARE_ACKNOWLEDGE, leader_pb2.ShareAcknowledgeRequest(), timeout_ms=10_000)
    await channel.close()
    return answer.acquisition_lock_timeout_ms


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("mode", "loop"), [("plain", "asyncio.unix_events"), ("uvloop", "uvloop")])
def test_a_role_from_start_to_stop(tmp_path: Path, number: signal.Signals, mode: str, loop: str) -> None:
    with role(mode, tmp_path, "--metrics-listen", "127.0.0.1:0") as process:
        lines = log_until(process, "started")
        assert (lines[0]["event"], lines[0]["loop"]) == ("starting", loop)
        assert all((line["role"], line["node_id"]) == ("example", 7) for line in lines)
        ready = parse_properties((tmp_path / "run" / "ready").read_text())
        assert list(ready) == ["address", "operations_address", "metrics_address"]
        assert asyncio.run(acknowledge(ready["address"])) == process.pid
        process.send_signal(number)
        lines = log_until(process, "stopped")
        assert lines[0]["reason"] == number.name
        assert process.wait(TIMEOUT_S) == 0
    RocksStore(tmp_path / "data" / "example").close()


WAITING = "loaded, waiting for the end of the start pipe"


@contextmanager
def waiting_role(mode: str, directory: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """A role that is loaded and waits, and what ends the waiting."""
    end, other_end = os.pipe()
    flags = ("--start-pipe", str(end), "--log-level", "debug", "--parent-pid", str(os.getpid()))
    with subprocess.Popen(
        command(mode, directory, *flags), stderr=subprocess.PIPE, text=True, pass_fds=(end,)
    ) as process:
        os.close(end)
        try:
            log_until(process, WAITING)
            yield process, lambda: os.close(other_end)
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["plain", "uvloop"])
def test_a_role_that_waits_starts_when_its_pipe_ends(tmp_path: Path, mode: str) -> None:
    with waiting_role(mode, tmp_path) as (process, go_on):
        assert not (tmp_path / "run" / "ready").exists()
        go_on()
        assert log_until(process, "started")[0]["event"] == "starting", "nothing was done before"
        process.send_signal(signal.SIGTERM)
        log_until(process, "stopped")
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("mode", ["plain", "uvloop"])
def test_a_role_that_waits_can_be_stopped(tmp_path: Path, mode: str) -> None:
    with waiting_role(mode, tmp_path) as (process, go_on):
        process.send_signal(signal.SIGTERM)
        events = [line["event"] for line in log_until(process, "stopped")]
        assert "starting" not in events
        assert process.wait(TIMEOUT_S) == 0
        go_on()


def test_a_start_that_fails_is_one_clear_line(tmp_path: Path) -> None:
    result = subprocess.run(command("broken", tmp_path), stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 1
    _, line = result.stderr.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["reason"]) == ("could not start", "the disk is gone")
    assert not (tmp_path / "run" / "ready").exists()


def test_bad_settings_have_a_code_of_their_own(tmp_path: Path) -> None:
    result = subprocess.run(command("settings", tmp_path), stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "num.partitions is 'x'" in json.loads(line)["reason"]


def test_a_bug_at_start_shows_where_it_is(tmp_path: Path) -> None:
    result = subprocess.run(command("bug", tmp_path), stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 1
    assert "RuntimeError: a bug" in json.loads(result.stderr.splitlines()[-1])["exception"]


def test_a_locked_store_says_so(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "data" / "example")
    result = subprocess.run(command("plain", tmp_path), stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    store.close()
    assert result.returncode == 1
    assert "Another process has it open" in json.loads(result.stderr.splitlines()[-1])["reason"]


def test_a_taken_port_says_so(tmp_path: Path) -> None:
    with role("plain", tmp_path / "a") as process:
        address = str(log_until(process, "started")[-1]["address"])
        result = subprocess.run(
            command("plain", tmp_path / "b", "--listen", address), stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S
        )
    assert result.returncode == 1
    assert f"cannot listen on '{address}'" in json.loads(result.stderr.splitlines()[-1])["reason"]


def test_a_bad_flag_is_named(tmp_path: Path) -> None:
    flags = command("plain", tmp_path, "--listen", "nowhere")
    result = subprocess.run(flags, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 2
    assert result.stderr.startswith("kshare example: --listen (or KSHARE_LISTEN) is 'nowhere'")


def test_a_start_that_waits_for_others_can_be_stopped(tmp_path: Path) -> None:
    with role("hang", tmp_path) as process:
        log_until(process, "starting")
        process.terminate()
        log_until(process, "stopped")
        assert process.wait(TIMEOUT_S) == 0
    assert not (tmp_path / "run" / "ready").exists()


def test_a_role_that_fails_for_good_stops_and_ends_with_an_error(tmp_path: Path) -> None:
    with role("failing", tmp_path) as process:
        lines = log_until(process, "stopped")
        (failed,) = [line for line in lines if line["level"] == "error"]
        assert (failed["event"], failed["reason"]) == ("failed", "its Java process has ended")
        assert process.wait(TIMEOUT_S) == 1
    RocksStore(tmp_path / "data" / "example").close()


def test_problems_are_logged(tmp_path: Path) -> None:
    with role("unhealthy", tmp_path) as process:
        assert log_until(process, "not healthy")[-1]["problems"] == ["the disk is slow"]


def test_problems_are_logged_after_a_bug_in_finding_them(tmp_path: Path) -> None:
    with role("raising", tmp_path) as process:
        line = log_until(process, "not healthy")[-1]
        assert line["problems"] == ["the node's problems could not be determined: RuntimeError: a bug"]
        assert "example_role.py" in str(line["exception"])
        log_until(process, "healthy again")


SUPERVISOR = """
import subprocess, sys, os
child = subprocess.Popen(sys.argv[1:] + ["--parent-pid", str(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""


def test_a_role_ends_with_its_supervisor(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *command("plain", tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        log_until(supervisor, "started")
        os.kill(supervisor.pid, signal.SIGKILL)
        lines = log_until(supervisor, "stopped")
        assert lines[0]["reason"] == f"the parent process {supervisor.pid} has ended"
        assert child != supervisor.pid


def test_the_ready_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "ready"
    write_ready_file(file, {"address": "127.0.0.1:1", "metrics_address": "127.0.0.1:2"})
    write_ready_file(file, {"address": "127.0.0.1:3"})
    assert file.read_text() == "address=127.0.0.1:3\n"
    assert list(file.parent.iterdir()) == [file]
