"""Processes are started, their lines passed on, restarted when they die, and stopped; with small real processes."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kshare.up import supervisor as supervisor_module
from kshare.up.supervisor import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    STEADY_AFTER_S,
    Backoff,
    ProcessPlan,
    RotatingLog,
    SupervisedProcess,
    exit_text,
)

LIMIT_S = 30.0
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(60)"


class Lines:
    """What was shown, and a way to wait for more."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def write(self, name: str, text: str) -> None:
        self.shown.append((name, text))
        self._changed.set()

    def of(self, name: str) -> list[str]:
        return [text for found, text in self.shown if found == name]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def supervised(tmp_path: Path, program: str, lines: Lines) -> SupervisedProcess:
    plan = ProcessPlan(name="role", command=[sys.executable, "-c", program])
    return SupervisedProcess(plan, write_line=lines.write, log=RotatingLog(tmp_path / "role.log"))


def test_a_killed_process_is_started_again_and_the_line_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        lines = Lines()
        process = supervised(tmp_path, SLEEPER, lines)
        process.start()
        await lines.until(lambda: lines.of("role") == ["up"])
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await lines.until(lambda: lines.of("role") == ["up", "up"])
        assert process.pid not in (None, pid) and process.restarts == 1
        assert any(
            f"role (pid {pid}) was killed by SIGKILL" in text and "restarting" in text
            for text in lines.of("supervisor")
        )
        await process.stop()
        assert process.pid is None

    asyncio.run(scenario())
    assert (tmp_path / "role.log").read_text() == "up\nup\n"


def test_a_process_that_ends_by_itself_is_started_again_and_its_exit_code_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        lines = Lines()
        process = supervised(tmp_path, "raise SystemExit(7)", lines)
        process.start()
        await lines.until(lambda: sum("exited with code 7" in text for text in lines.of("supervisor")) == 3)
        await process.stop()  # between two lives

    asyncio.run(scenario())


def test_a_program_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        lines = Lines()
        plan = ProcessPlan(name="role", command=[str(tmp_path / "no-such-program")])
        process = SupervisedProcess(plan, write_line=lines.write, log=RotatingLog(tmp_path / "role.log"))
        process.start()
        await lines.until(lambda: process.restarts >= 1)
        await process.stop()
        assert any("restarting" in text for text in lines.of("supervisor"))

    asyncio.run(scenario())


def test_a_process_that_ignores_the_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_GRACE_S", 0.2)

    async def scenario() -> None:
        lines = Lines()
        process = supervised(
            tmp_path, f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPER}", lines
        )
        process.start()
        await lines.until(lambda: lines.of("role") == ["up"])
        pid = process.pid
        assert pid is not None
        await process.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert any("killing it" in text for text in lines.of("supervisor"))

    asyncio.run(scenario())


def test_a_line_longer_than_the_limit_does_not_end_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "LONGEST_LINE_BYTES", 100)

    async def scenario() -> None:
        lines = Lines()
        process = supervised(tmp_path, f"print('x' * 5000, flush=True)\n{SLEEPER}", lines)
        process.start()
        await lines.until(lambda: "up" in lines.of("role"))
        await process.stop()

    asyncio.run(scenario())


def test_a_child_dies_with_the_supervisor_however_that_dies(tmp_path: Path) -> None:
    program = tmp_path / "supervise.py"
    program.write_text(
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from kshare.up.supervisor import ProcessPlan, RotatingLog, SupervisedProcess\n"
        "async def main():\n"
        f"    plan = ProcessPlan(name='role', command=[sys.executable, '-c', {SLEEPER!r}])\n"
        "    process = SupervisedProcess(plan, write_line=lambda name, text: print(process.pid, flush=True),\n"
        f"        log=RotatingLog(Path({str(tmp_path / 'role.log')!r})))\n"
        "    process.start()\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        pid = int(parent.stdout.readline())  # the child has written its line: it runs its own program
        watch = os.pidfd_open(pid)
        parent.kill()
        parent.wait(LIMIT_S)
    try:
        assert asyncio.run(_ends(watch)), "the child outlived its supervisor"
    finally:
        os.close(watch)


async def _ends(pidfd: int) -> bool:
    """Whether the process behind the descriptor ends in time."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), LIMIT_S)
    except TimeoutError:
        return False
    finally:
        asyncio.get_running_loop().remove_reader(pidfd)
    return True


def test_variables_that_would_set_flags_of_a_role_do_not_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator sets KSHARE_CONFIG for his commands; as the --config of roles it would have them all fail."""
    monkeypatch.setenv("KSHARE_CONFIG", "/etc/kshare.properties")
    monkeypatch.setenv("KSHARE_LOG_LEVEL", "warning")

    async def scenario() -> None:
        lines = Lines()
        program = "import os\nprint(sorted(name for name in os.environ if name.startswith('KSHARE_')), flush=True)"
        process = supervised(tmp_path, program + "\nimport time\ntime.sleep(60)", lines)
        process.start()
        await lines.until(lambda: bool(lines.of("role")))
        await process.stop()
        assert lines.of("role") == ["['KSHARE_LOG_LEVEL']"]

    asyncio.run(scenario())


def test_the_delay_doubles_up_to_a_limit_while_the_process_dies_early_and_starts_anew_when_it_lived() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay_s(0.0) for _ in range(12)]
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert delays[-1] == LONGEST_DELAY_S and delays == sorted(delays)
    assert backoff.next_delay_s(STEADY_AFTER_S) == FIRST_DELAY_S


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_how_a_process_ended(code: int, text: str) -> None:
    assert exit_text(code) == text


def test_a_full_log_is_turned_over(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "role.log", max_bytes=10)
    for word in ("first", "second", "third"):
        log.write(word)
    log.close()
    assert (tmp_path / "role.log").read_text() == "third\n"
    assert (tmp_path / "role.log.1").read_text() == "first\nsecond\n"


def test_a_log_whose_directory_was_removed_gets_a_new_one_when_it_is_turned_over(tmp_path: Path) -> None:
    log = RotatingLog(_log_path(tmp_path), max_bytes=10)
    log.write("more than ten bytes")
    shutil.rmtree(tmp_path / "logs")
    for word in ("first", "second"):
        log.write(word)
    log.close()
    assert _log_path(tmp_path).read_text() == "first\nsecond\n"


def test_a_full_log_that_cannot_be_renamed_goes_on_and_is_turned_over_later(tmp_path: Path) -> None:
    path = _log_path(tmp_path)
    log = RotatingLog(path, max_bytes=10)
    log.write("more than ten bytes")
    obstacle = path.with_name("role.log.1")
    obstacle.mkdir()
    log.write("later")
    obstacle.rmdir()
    log.write("last")
    log.close()
    assert obstacle.read_text() == "more than ten bytes\nlater\n"
    assert path.read_text() == "last\n"


def test_a_full_log_goes_on_while_no_file_can_be_opened(tmp_path: Path) -> None:
    path = _log_path(tmp_path)
    log = RotatingLog(path, max_bytes=10)
    log.write("more than ten bytes")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        log.write("later")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    log.write("last")
    log.close()
    assert path.with_name("role.log.1").read_text() == "more than ten bytes\nlater\n"
    assert path.read_text() == "last\n"


def _log_path(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir(exist_ok=True)
    return directory / "role.log"


def test_a_role_goes_on_when_its_log_cannot_be_turned_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        lines = Lines()
        program = "import sys\nfor number in sys.stdin: print(number, flush=True)"
        program = "import time\nwhile True: print('x' * 100, flush=True); time.sleep(0.01)"
        plan = ProcessPlan(name="role", command=[sys.executable, "-c", program])
        log = RotatingLog(_log_path(tmp_path), max_bytes=1000)
        process = SupervisedProcess(plan, write_line=lines.write, log=log)
        process.start()
        await lines.until(lambda: len(lines.of("role")) == 1)
        shutil.rmtree(tmp_path / "logs")
        (tmp_path / "logs").write_text("a file")
        await lines.until(lambda: len(lines.of("role")) >= 30)
        await process.stop()
        assert process.restarts == 0

    asyncio.run(scenario())


def test_a_process_whose_supervision_failed_is_stopped_without_an_error(tmp_path: Path) -> None:
    """Otherwise the processes that are stopped after it would get no signal."""

    async def scenario() -> None:
        lines = Lines()

        def write_line(name: str, text: str) -> None:
            lines.write(name, text)
            if text == "up":
                raise ValueError("the line cannot be written")

        plan = ProcessPlan(name="role", command=[sys.executable, "-c", SLEEPER])
        process = SupervisedProcess(plan, write_line=write_line, log=RotatingLog(tmp_path / "role.log"))
        process.start()
        await lines.until(lambda: lines.of("role") == ["up"])
        pid = process.pid
        assert pid is not None
        await process.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert lines.of("supervisor")[-1].startswith("role was no longer supervised: ValueError")

    asyncio.run(scenario())
