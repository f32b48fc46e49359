"""Reports of contained bugs: the caller continues, and the exception is still reported.

They go to the event loop's exception handler, like exceptions of tasks that were never retrieved. asyncio's default
handler logs them at level ERROR with their traceback; the simulation fails the run.
"""

from __future__ import annotations

import asyncio


def report_contained_bug(message: str, error: BaseException) -> None:
    """Reports an exception that no valid input or failing disk explains. Must be called on the event loop."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
