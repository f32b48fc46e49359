"""Programs of examples/, run by the commands of their READMEs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
LIMIT_S = 60
STACKS_S = 2
"""The time in which a JVM prints the stacks of its threads."""


def command_lines(example: str) -> list[str]:
    """The indented lines of an example's README."""
    return re.findall(r"^    (\S.*)$", (EXAMPLES / example / "README.md").read_text(), re.MULTILINE)


def run(line: str, bootstrap: str, *arguments: str, folder: Path = ROOT, timeout_s: float = LIMIT_S) -> str:
    """What a line of a README prints, with further arguments, in a folder."""
    words = [*command(line), *arguments]
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment(bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            shown = _last_words(process)
            raise AssertionError(f"{line} did not end in {timeout_s} s; it printed\n{shown}") from None
    assert process.returncode == 0, f"{line}\n{printed}{errors}"
    return printed


def _last_words(process: subprocess.Popen[str]) -> str:
    """Ends the program with all that it started; what they printed, with the stacks of a JVM (on SIGQUIT)."""
    _send(process, signal.SIGQUIT)
    with suppress(subprocess.TimeoutExpired):
        return "".join(process.communicate(timeout=STACKS_S))
    _send(process, signal.SIGKILL)
    return "".join(process.communicate())


def _send(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def worker(line: str, bootstrap: str, *arguments: str, folder: Path = ROOT, exit_code: int = 0) -> Iterator[list[str]]:
    """A program that runs until it is told to end by SIGTERM, and the lines that it printed until now."""
    printed: list[str] = []
    with subprocess.Popen(
        [*command(line), *arguments], cwd=folder, env=environment(bootstrap), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_collect, args=(process.stdout, printed))
        reader.start()
        try:
            yield printed
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == exit_code
        finally:
            process.kill()
            reader.join(LIMIT_S)


def command(line: str) -> list[str]:
    """The words of a line; programs of .venv are those of the environment that runs the tests."""
    program, *words = shlex.split(line)
    programs = {".venv/bin/python": sys.executable, ".venv/bin/kshare": str(Path(sys.executable).parent / "kshare")}
    return [programs.get(program, program), *words]


def environment(bootstrap: str) -> dict[str, str]:
    """The environment of a user whose cluster is not at localhost:9092."""
    return {**os.environ, "KSHARE_BOOTSTRAP": bootstrap}


def _collect(lines: Iterable[str], printed: list[str]) -> None:
    for line in lines:
        printed.append(line.rstrip("\n"))
