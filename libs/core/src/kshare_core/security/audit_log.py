"""Lines of the audit log: JSON of the logger "kshare.audit", whatever the format and the level of other lines are."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

TEXT_LIMIT = 300
"""Characters of a text from a client."""

log = logging.getLogger("kshare.audit")


def write_audit_line(event: str, fields: dict[str, Any]) -> None:
    line = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "logger": log.name, "event": event}
    log.info("%s", json.dumps({**line, **fields}))  # in ASCII: a client's text may have controls of terminals
