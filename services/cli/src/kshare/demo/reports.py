"""What the demo's processes tell the one that started them: one JSON object a line on stdout, flushed at once."""

from __future__ import annotations

import json
import sys
from typing import Any


def report(event: str, **fields: Any) -> None:
    """Returns when the line is in the pipe, so that it survives a crash that follows."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def parse_report(line: bytes) -> dict[str, Any] | None:
    """The report of a line; None where it is something else, such as a library's message."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None
