"""Bugs whose effect is contained: the caller goes on, and the exception is reported all the same.

The event loop's exception handler takes them, as it takes exceptions that no task's owner looked at. asyncio's default
handler logs them at level ERROR with their traceback; the simulation fails the run.
"""

from __future__ import annotations

import asyncio


def report_contained_bug(message: str, error: BaseException) -> None:
    """Reports an exception that no valid input or failing disk explains. To be called on the event loop."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
