"""A RocksStore whose large appended values lie in files beside it (`store`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from kshare_core.errors import StorageFailure
from kshare_runtime.background_sync import BackgroundSync, background_sync
from kshare_runtime.large_values.files import FILE_BYTES
from kshare_runtime.large_values.folder import DiskFolder
from kshare_runtime.large_values.removal import Removals
from kshare_runtime.large_values.store import FROM_BYTES, ValueFileStore
from kshare_runtime.ports import StoreFigures
from kshare_runtime.rocks_store import RocksStore

FOLDER = "values"
"""The folder of the files, in the store's directory."""


class RocksValueFileStore(ValueFileStore):
    """See ValueFileStore; what a RocksStore can do besides, it can do too. `removals` unlinks its files."""

    def __init__(
        self,
        store: RocksStore,
        *,
        family: str,
        prefix_bytes: int,
        from_bytes: int = FROM_BYTES,
        file_bytes: int = FILE_BYTES,
        new_sync: Callable[[asyncio.AbstractEventLoop], BackgroundSync] = background_sync,
        removals: Removals | None = None,
    ) -> None:
        self._rocks = store
        self._folder = DiskFolder(store.path / FOLDER, removals=removals)
        super().__init__(
            store,
            self._folder,
            family=family,
            prefix_bytes=prefix_bytes,
            from_bytes=from_bytes,
            file_bytes=file_bytes,
            new_sync=new_sync,
        )

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._rocks.path

    def damaged_families(self) -> Mapping[str, str]:
        """See RocksStore."""
        return self._rocks.damaged_families()

    def figures(self) -> StoreFigures | None:
        """See FiguredStore; the files count as tables."""
        figures = self._rocks.figures()
        return figures and figures._replace(
            table_bytes=figures.table_bytes + self.file_bytes, refuses_writes=int(self.write_failure is not None)
        )

    def sync_confirmed(self) -> None:
        """See RocksStore."""
        self._rocks.sync_confirmed()

    def checkpoint(self, directory: Path) -> None:
        """See RocksStore."""
        self._begin_checkpoint(directory)()

    async def checkpoint_beside(self, directory: Path) -> None:
        """As `checkpoint`; a thread links the files meanwhile, which takes a sync for each prefix."""
        with self._folder.removals_held():
            link = asyncio.get_running_loop().run_in_executor(None, self._begin_checkpoint(directory))
            try:
                await asyncio.shield(link)
            finally:
                await asyncio.wait([link])  # also if this is cancelled: nothing is linked after it has ended

    def _begin_checkpoint(self, directory: Path) -> Callable[[], None]:
        """Copies the rows; the result links the files that they need, of which none may be unlinked before."""
        self.finish_writes()
        self._rocks.checkpoint(directory)
        self.end_files()
        try:
            files = self._folder.files()
        except OSError as error:
            raise self._not_copied(directory, error) from error

        def link() -> None:
            try:
                self._folder.link_to(directory / FOLDER, files)
            except OSError as error:
                raise self._not_copied(directory, error) from error

        return link

    def _not_copied(self, directory: Path, error: OSError) -> StorageFailure:
        return StorageFailure(f"cannot copy the store {self.path} to {directory}: {error}")
