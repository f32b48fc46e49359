"""A wait until this leader's view of the catalog has reached the catalog's current version.

A view is normally some milliseconds old. It may be much older: the event loop was busy, the leader
reconnects, another coordinator takes over. This is harmless where the next view corrects decisions made by the old one.
But the start offset of a share-partition is found by share.auto.offset.reset once, and stored. With a view that does
not have an administrator's `earliest` yet, it would be the end of the log, and the group would skip every record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from kshare_core.identifiers import SharePartitionKey
from kshare_core.log_fields import about
from kshare_leader.share.limits import CATALOG_CALL_TIMEOUT_MS, CATALOG_WAIT_MS
from kshare_leader.share.state_store import retry_pause_s
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DESCRIBE_CATALOG
from kshare_rpc.network import CallFailed, Channel


class CurrentCatalog:
    """See the module docstring. `coordinator` returns the channel to the active coordinator.

    `wait_for_version(version, timeout ms)` returns whether this leader's view reached the version in time.
    """

    def __init__(
        self,
        *,
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        random: random.Random,
        report: Callable[[str], None],
    ) -> None:
        self._coordinator = coordinator
        self._wait_for_version = wait_for_version
        self._random = random
        self._report = report

    async def catch_up(self, key: SharePartitionKey) -> None:
        """Waits until the view has every change of the catalog that was answered before this call.

        Retries while the coordinator is not available, or its version does not arrive; `key` is the
        share-partition that waits.
        """
        attempts = 0
        while (problem := await self._attempt()) is not None:
            if attempts == 0:
                about(key, self._report)(
                    f"share-partition {key} cannot find its start offset before this leader has the newest configs of "
                    f"the group, trying again: {problem}"
                )
            attempts += 1
            await asyncio.sleep(retry_pause_s(attempts, self._random))

    async def _attempt(self) -> str | None:
        """Why the view is not known to be new enough; None if it is."""
        request = coordinator_pb2.DescribeCatalogRequest()
        try:
            answer, _ = await self._coordinator().call(DESCRIBE_CATALOG, request, timeout_ms=CATALOG_CALL_TIMEOUT_MS)
        except CallFailed as failure:
            return str(failure)
        if answer.error_code:
            return f"the coordinator refused DescribeCatalog with error {answer.error_code}: {answer.error_message}"
        if not await self._wait_for_version(answer.version, CATALOG_WAIT_MS):
            return f"version {answer.version} of the catalog did not arrive here within {CATALOG_WAIT_MS} ms"
        return None
