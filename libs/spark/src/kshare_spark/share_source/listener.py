"""The listener that notifies sources of a finished batch as soon as Spark reports its progress.

Spark calls a source's commit(end) only when it plans the next batch, so the last batch of a run, and with a long
ProcessingTime trigger every batch, would stay locked. `kshare_spark.data_source.register` adds this listener.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kshare_spark.share_source.control import tell

logger = logging.getLogger(__name__)


class ShareListener(StreamingQueryListener):
    """The listener of one SparkSession, for all of its queries; it ignores those of other sources."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, None]] = {}
        """The sources' sessions by the query's run id."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to tell."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to tell."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for source in progress.sources:
            offset = share_offset(source.endOffset)
            if offset is not None:
                session, batch = offset
                self._sessions.setdefault(str(progress.runId), {})[session] = None
                tell(session, {"finished": batch})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        for session in self._sessions.pop(str(event.runId), {}):
            tell(session, {"terminated": True})


def share_offset(text: Any) -> tuple[str, int] | None:
    """Session and batch of a progress report's end offset; None for other sources and for a batch without records."""
    try:
        document = json.loads(text)
    except (TypeError, ValueError):
        return None
    if not isinstance(document, dict) or not {"version", "batch", "session", "runs"} <= document.keys():
        return None
    return (str(document["session"]), int(document["batch"])) if document["session"] else None
