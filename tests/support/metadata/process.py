"""A process with one EtcdMetadataStore, for tests that kill or stop a coordinator: python -m support.metadata.process.

Arguments: etcd's endpoint, node id, incarnation, lease in milliseconds. Every 5 ms it writes a line: the monotonic time
at which it was going to ask, which all processes of a machine share; whether it owns the catalog; how many group
partitions it owns; and the last number that it knows. As long as it owns the catalog it counts up the number `n` there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence

from kshare_coordinator.metadata.etcd.grpc_etcd import GrpcEtcd
from kshare_coordinator.metadata.etcd.settings import EtcdSettings
from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore
from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember, OwnershipLost
from kshare_runtime.ports import Write

GROUP_PARTITIONS = 10
PREFIX = "/processes/"
INTERVAL_S = 0.005


class Listener:
    """Knows the number in the catalog."""

    def __init__(self) -> None:
        self.number = 0

    def catalog_loaded(self, rows: Sequence[Write]) -> None:
        self.catalog_changed(rows)

    def catalog_changed(self, writes: Sequence[Write]) -> None:
        for write in writes:
            assert write.value is not None
            self.number = int(write.value)

    def gained(self, partition: int, rows: Sequence[Write]) -> None:
        return

    def lost(self, partition: int) -> None:
        return

    def members_changed(self, members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> None:
        return


async def count_up(store: EtcdMetadataStore, listener: Listener) -> None:
    while True:
        if store.owns(CATALOG):
            number = listener.number + 1
            waiting = store.append({CATALOG: [Write("coordinator", b"n", b"%d" % number)]})
            assert waiting is not None
            try:
                await waiting
                listener.number = number
            except OwnershipLost:
                pass
        await asyncio.sleep(INTERVAL_S)


async def main(endpoint: str, node_id: int, incarnation: str, lease_ms: int) -> None:
    etcd = GrpcEtcd(EtcdSettings(endpoints=(endpoint,)), time_limit_ms=lease_ms // 4)
    store = EtcdMetadataStore(etcd, prefix=PREFIX, lease_ms=lease_ms, group_partitions=GROUP_PARTITIONS)
    listener = Listener()
    await store.start(CoordinatorMember(node_id, incarnation, "127.0.0.1:1"), listener)
    counting = asyncio.ensure_future(count_up(store, listener))
    while not counting.done():
        asked_at = time.monotonic()
        has_catalog = store.owns(CATALOG)
        count = sum(store.owns(partition) for partition in range(GROUP_PARTITIONS))
        sys.stdout.write(f"{asked_at} {int(has_catalog)} {count} {listener.number}\n")
        sys.stdout.flush()
        await asyncio.sleep(INTERVAL_S)
    counting.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
