"""Reports of contained bugs: the caller continues, and the exception is still reported.

They go to the event loop's exception handler, like exceptions of tasks that were never retrieved. asyncio's default
handler logs them at level ERROR with their traceback; the simulation fails the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

RESTART_PAUSE_S = 5.0


def report_contained_bug(message: str, error: BaseException) -> None:
    """Reports an exception that no valid input or failing disk explains. Must be called on the event loop."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


async def restarted_after_bugs(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Work of a background task: where it fails unexpectedly, this is reported, and it begins again after a pause.

    Otherwise a task that its owner only keeps in an attribute ends for good, and no line says so: asyncio reports an
    exception that was never retrieved when the task is destroyed, which is at the end of the process.
    """
    while True:
        try:
            await work()
            return
        except Exception as error:
            report_contained_bug(f"{name} failed unexpectedly and begins again in {RESTART_PAUSE_S:.0f} s", error)
        await asyncio.sleep(RESTART_PAUSE_S)
