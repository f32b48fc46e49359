"""Dead letters on the kafka engine, which does not write them yet: records that are given up stay Archiving.

Their state is stored as such, so no record is lost. They hold the start offset of their share-partition, whose window
may become full; the health check says so.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.dead_letters.limits import PROBLEMS_LIMIT
from kshare_leader.dead_letters.service import ArchivingPartition
from kshare_rpc.catalog import CatalogView

TOPIC_CONFIG = "errors.deadletterqueue.topic.name"


class HeldBackDeadLetters:
    """A `port.DeadLetterSender` that sends none; `report` logs a sentence."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._archiving: dict[SharePartitionKey, ArchivingPartition] = {}

    def attach(
        self,
        *,
        find: Callable[[SharePartitionKey], ArchivingPartition | None],
        load: Callable[[SharePartitionKey], ArchivingPartition],
    ) -> None:
        """Nothing is looked for: share-partitions call `wake` when they are loaded."""

    def before_archiving(self, key: SharePartitionKey) -> None:
        """The share coordinator's state tells the next leader."""

    def wake(self, served: ArchivingPartition) -> None:
        self._archiving[served.key] = served

    def dropped(self, served: ArchivingPartition, *, was_at_rest: bool) -> None:
        if self._archiving.get(served.key) is served:
            del self._archiving[served.key]

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Warns of each group whose dead-letter topic is new."""
        for group_id, texts in new.group_configs.items():
            topic = texts.get(TOPIC_CONFIG)
            if topic and old.group_configs.get(group_id, {}).get(TOPIC_CONFIG) != topic:
                self._report(
                    f"group {group_id!r} has the dead-letter topic {topic}, but dead letters are not written with "
                    "kshare.engine=kafka: records that are given up are kept and hold the group's start offset"
                )

    async def stop(self) -> None:
        self._archiving.clear()

    def problems(self) -> list[str]:
        """The share-partitions with records that are kept, at most PROBLEMS_LIMIT of them."""
        found = [
            f"share-partition {key} keeps records for the dead-letter topic {served.dead_letter_settings.topic_name}, "
            "which are not written with kshare.engine=kafka"
            for key, served in self._archiving.items()
            if served.archiving(1)
        ]
        return found[:PROBLEMS_LIMIT]
