"""The offset in Spark's checkpoint: the runs of one batch, without record bytes.

{"version": 1, "batch": 7, "session": "…", "lock_deadline_ms": …, "runs": [[topic, topic id, partition, [[first, last,
delivery count], …]], …], "unaccepted": [the same]}

`batch` counts the batches of this source with records; `session` names the process that acquired them, for the
listener. `unaccepted` are older runs that this query has done but could not accept, because their locks were lost. When
they are acquired again, they are accepted and not read again. At most UNACCEPTED_LIMIT runs are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kshare_spark.share_source.runs import Place, Run, RunMap

VERSION = 1
UNACCEPTED_LIMIT = 1000


class UnknownOffset(ValueError):
    """An offset in the checkpoint is of another source or of a newer kshare."""


@dataclass(frozen=True)
class ShareOffset:
    """One batch; batch 0 is the initial offset, without records."""

    batch: int = 0
    session: str = ""
    lock_deadline_ms: int = 0
    runs: RunMap = field(default_factory=RunMap)
    unaccepted: RunMap = field(default_factory=RunMap)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "batch": self.batch,
            "session": self.session,
            "lock_deadline_ms": self.lock_deadline_ms,
            "runs": _listed(self.runs),
            "unaccepted": _listed(self.unaccepted.last_runs(UNACCEPTED_LIMIT)),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ShareOffset:
        """Parses an offset; UnknownOffset for another document."""
        version = document.get("version")
        if version != VERSION:
            raise UnknownOffset(
                f"the checkpoint has an offset of version {version!r}, this kshare reads version {VERSION}: {document}"
            )
        try:
            return ShareOffset(
                batch=int(document["batch"]),
                session=str(document["session"]),
                lock_deadline_ms=int(document["lock_deadline_ms"]),
                runs=_read(document["runs"]),
                unaccepted=_read(document["unaccepted"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnknownOffset(f"the checkpoint's offset cannot be read ({error!r}): {document}") from error


def _listed(runs: RunMap) -> list[list[Any]]:
    return [[*place, [list(run) for run in found]] for place, found in runs.items()]


def _read(listed: Any) -> RunMap:
    return RunMap(
        {
            Place(str(topic), str(topic_id), int(partition)): [Run(*map(int, run)) for run in found]
            for topic, topic_id, partition, found in listed
        }
    )
