"""A task that reopens a store which refuses writes after a failed one, once its disk accepts writes again.

A failed write has no effect, before and after (`MendableStore`), so a role's state in memory stays valid and nothing is
loaded again. Until then the store can be read, every write fails, and `problems` reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.errors import StorageFailure
from kshare_runtime.ports import KeyValueStore, MendableStore

CHECK_INTERVAL_S = 1.0


class StoreMending:
    """The mending of one store; a store that is not mendable is left alone.

    `report` takes sentences for the log; `on_mended` is called when the store accepts writes again.
    """

    def __init__(
        self, store: KeyValueStore, *, report: Callable[[str], None], on_mended: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store if isinstance(store, MendableStore) else None
        self._report = report
        self._on_mended = on_mended
        self._task: asyncio.Task[None] | None = None
        self._refuses_since: float | None = None
        self._newest_problem = ""

    def start(self) -> None:
        if self._store is not None:
            work = restarted_after_bugs("the mending of the store", partial(self._run, self._store))
            self._task = asyncio.get_running_loop().create_task(work, name="store-mending")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def problems(self) -> list[str]:
        """The failed write; empty while the store takes writes."""
        failure = None if self._store is None else self._store.write_failure
        return [] if failure is None else [f"the store refuses writes because a write failed: {failure}"]

    async def _run(self, store: MendableStore) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if store.write_failure is not None:
                self._try_to_mend(store, store.write_failure)

    def _try_to_mend(self, store: MendableStore, failure: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._refuses_since is None:
            self._refuses_since = now
            self._report(f"the store refuses writes until it is reopened, because a write failed: {failure}")
        try:
            is_mended = store.mend()
        except StorageFailure as problem:
            if str(problem) != self._newest_problem:
                self._newest_problem = str(problem)
                self._report(f"the store that refuses writes can be neither read nor reopened: {problem}")
            return
        if is_mended:
            self._report(f"the store was reopened and accepts writes again, after {now - self._refuses_since:.1f} s")
            self._refuses_since, self._newest_problem = None, ""
            self._on_mended()
