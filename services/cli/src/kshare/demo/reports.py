"""Reports of the demo's processes to their parent: one JSON object per line on stdout, flushed immediately."""

from __future__ import annotations

import json
import sys
from typing import Any


def report(event: str, **fields: Any) -> None:
    """Writes a report; it returns when the line is in the pipe, where it survives a crash of this process."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def parse_report(line: bytes) -> dict[str, Any] | None:
    """The report in a line; None for other lines, such as a library's message."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None
