"""Stray topics: topics whose records are in a leader's store, and that an older catalog does not know.

A topic that is missing in the catalog was deleted, unless the coordinator's store is an older copy: then it was created
after the copy. Its records are kept, and a warning names it at each start. It is served again when a catalog knows it,
which a newer copy does. The config kshare.stray.topics.delete names the stray topics whose records are to be removed.

**Older catalogs.** Each start of a coordinator has a random id, and the catalog has a list of its starts with the
version at which each began. The leader stores its position: the start and version of the newest catalog that it
applied. A catalog continues from there if it has the start, and the next start did not begin at a lower version. Else
it branched off before, and lacks changes that this leader has seen. Version numbers alone do not tell: the older
catalog counts on, and may have as many changes by the time at which the leader sees it.

A leader whose catalog turns into an older one does not move its position, and registers again: the answer may have only
the changes since a version that both catalogs have, so it does not tell which topics are missing. The whole catalog,
which comes after the registration, does.

The position becomes durable in the same write as the first records that come after it. The marks of stray topics become
durable with the position of the catalog that does not know them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TOPIC_ID_LENGTH, topic_id_text
from kshare_leader.log import keys
from kshare_rpc.catalog import CatalogView
from kshare_runtime.ports import KeyValueStore, Write

CONFIG = "kshare.stray.topics.delete"
_MARK = b"stray-topic/"
_END_OF_MARKS = b"stray-topic0"
_POSITION = b"catalog.position"
_VERSION_BYTES = 8

log = logging.getLogger(__name__)


class _Position(NamedTuple):
    """A version of the catalog, and the start of the coordinator that wrote it."""

    start_id: str
    version: int

    def encoded(self) -> bytes:
        return self.version.to_bytes(_VERSION_BYTES, "big") + self.start_id.encode()


def _decoded(value: bytes) -> _Position:
    return _Position(value[_VERSION_BYTES:].decode(errors="replace"), int.from_bytes(value[:_VERSION_BYTES], "big"))


class StrayTopics:
    """The stray topics of one store, and the position in the catalog; the module's docstring has the rules."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        rows: KeyValueStore | None = None,
        report: Callable[[str], None] = lambda text: None,
        on_older: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_older` is called when the catalog that was followed turns into an older one; it brings the whole one."""
        self._store = store
        self._rows = rows or store
        """Without the checksums and value files of `store`: a damaged row has a topic too."""
        self._report = report
        self._on_older = on_older
        self._is_read = False
        self._is_unsure = False
        self._position: _Position | None = None
        self._strays: dict[bytes, None] = {}
        self._unstored: dict[bytes, bytes | None] = {}
        """Rows of the `meta` family that wait for the next write."""

    def follow(self, old: CatalogView, new: CatalogView) -> list[bytes]:
        """The topics whose records are to be removed, because the new view says that they were deleted."""
        missing = dict.fromkeys(topic_id for topic_id in old.topics_by_id if topic_id not in new.topics_by_id)
        is_first = old.version == 0 and bool(new.cluster_id)
        was_unsure, self._is_unsure = self._is_unsure, True
        try:
            self._read()
            is_older = self._is_older(new)
            if is_older and not is_first:
                if not was_unsure:
                    self._on_older()
                return []
            if is_first:
                self._compare_with_stored(new, set(_stored_topics(self._rows)), missing, is_older=is_older)
        except StorageFailure as failure:
            self._report(f"the search for records of deleted topics failed: {failure}")
            return []
        for topic_id in [topic_id for topic_id in self._strays if topic_id in new.topics_by_id]:
            self.forget(topic_id)
        self._is_unsure = False
        self._move_to(new)
        if is_first:
            self._warn()
            self._try_to_save()
        return [topic_id for topic_id in missing if topic_id not in self._strays]

    def _compare_with_stored(
        self, view: CatalogView, stored: set[bytes], missing: dict[bytes, None], *, is_older: bool
    ) -> None:
        unknown = sorted(topic_id for topic_id in stored if topic_id not in view.topics_by_id)
        missing.update(dict.fromkeys(unknown))
        if is_older:
            for topic_id in unknown:
                self._strays[topic_id] = None
                self._unstored[_MARK + topic_id] = b""
        for topic_id in [topic_id for topic_id in self._strays if topic_id not in stored]:
            self.forget(topic_id)

    def _is_older(self, view: CatalogView) -> bool:
        """Whether the view is of a catalog that lacks changes which this leader has seen."""
        position = self._position
        if position is None or not view.starts:
            return False
        ends = [*(start.version for start in view.starts[1:]), view.version]
        for start, end in zip(view.starts, ends, strict=True):
            if start.start_id == position.start_id:
                return position.version > end
        return True

    def _move_to(self, view: CatalogView) -> None:
        if not view.starts:
            return
        position = _Position(view.starts[-1].start_id, view.version)
        if position != self._position:
            self._position = position
            self._unstored[_POSITION] = position.encoded()

    def _warn(self) -> None:
        for topic_id in self._strays:
            name = topic_id_text(topic_id)
            self._report(
                f"the catalog does not know topic {name}, and this leader has records of it: the coordinator's store "
                "was restored from an older copy. The records are kept. A restore of the coordinator from a newer copy "
                f"brings the topic back; {CONFIG}={name} in this leader's configs removes its records at the next start"
            )

    def __contains__(self, topic_id: object) -> bool:
        return topic_id in self._strays

    @property
    def is_unsure(self) -> bool:
        """Whether the newest view does not tell which topics were deleted: it is older, or could not be compared."""
        return self._is_unsure

    def among(self, named: Collection[str]) -> list[bytes]:
        """The stray topics whose ids are `named`."""
        return [topic_id for topic_id in self._strays if topic_id_text(topic_id) in named]

    def keeps(self, topic_id: bytes) -> bool:
        """Whether records of a topic that the newest view does not know have to stay."""
        return self._is_unsure or topic_id in self._strays

    def forget(self, topic_id: bytes) -> None:
        """The topic is not stray any more."""
        if topic_id in self._strays:
            del self._strays[topic_id]
            self._unstored[_MARK + topic_id] = None

    # writing

    def writes(self) -> list[Write]:
        """The writes of what is not stored yet; `written` follows when they are durable."""
        return [Write(keys.META, key, value) for key, value in self._unstored.items()]

    def written(self) -> None:
        self._unstored.clear()

    def write(self, *rows: Write) -> None:
        """Writes rows in one durable write with what is not stored yet. StorageFailure."""
        self._store.finish_writes()  # else an older position that is being written might replace this one
        writes = [*rows, *self.writes()]
        if writes:
            self._store.write(writes)
            self.written()

    def _try_to_save(self) -> None:
        try:
            self.write()
        except StorageFailure as failure:  # the next append writes it
            self._report(f"the position in the catalog could not be written: {failure}")

    def _read(self) -> None:
        if self._is_read:
            return
        stored = self._store.get(keys.META, _POSITION)
        self._position = None if stored is None else _decoded(stored)
        for key, _ in self._store.scan(keys.META, _MARK, _END_OF_MARKS):
            self._strays[key[len(_MARK) :]] = None
        self._is_read = True


def _stored_topics(store: KeyValueStore) -> Iterator[bytes]:
    """The topics with rows in any family; one may come several times."""
    for family in keys.PARTITION_FAMILIES:
        start: bytes | None = b""
        while start is not None:
            key = next((key for key, _ in store.scan(family, start)), None)
            if key is None:
                break
            topic_id = key[:TOPIC_ID_LENGTH]
            yield topic_id
            start = keys.after_prefix(topic_id)
