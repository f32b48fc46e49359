"""A program that dies with its parent: `python -I -S child.py PARENT_PID PROGRAM ARGUMENT…` turns into PROGRAM.

Linux signals a process whose parent has died when it asked for that (prctl PR_SET_PDEATHSIG); the request survives
the exec. It is made in the child itself, because a fork that runs Python is not safe beside threads. Elsewhere than on
Linux the program is started without.
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
        sys.exit("the process that wanted this one is gone")
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
