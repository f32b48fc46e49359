"""A wrapper whose program dies with its parent: `python -I -S child.py PARENT_PID PROGRAM ARGUMENT…` execs PROGRAM.

On Linux, prctl(PR_SET_PDEATHSIG) requests SIGKILL when the parent dies; the setting survives the exec. The child makes
the call itself, because running Python between fork and exec is not safe beside threads. Other systems have no such
call; there the program is started without it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"parent process {parent} has ended; not starting {program[0]}")
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
