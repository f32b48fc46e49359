"""Whose records a leader's store has: the cluster and the node, written to the store at the first view of the catalog.

Another cluster's catalog does not know the records, and under another node's id the catalog gives them to another
node. In both cases nothing is served or removed. A store that an older version wrote has no node id. It gets one unless
the catalog gives all of its partitions to other leaders.
"""

from __future__ import annotations

from contextlib import suppress

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TOPIC_ID_LENGTH, TopicPartition
from kshare_leader.log import keys
from kshare_rpc.catalog import CatalogView
from kshare_runtime.ports import KeyValueStore, Write


class StoreIdentity:
    """The identity of one store; an empty store takes that of its node and of the catalog."""

    def __init__(self, store: KeyValueStore, node_id: int, *, rows: KeyValueStore | None = None) -> None:
        """`rows` is the store without checksums and value files, if `store` has them."""
        self._store = store
        self._rows = rows or store
        self._node_id = node_id
        self._cluster_id: str | None = None
        """The cluster of the newest view without a problem."""

    def problem(self, view: CatalogView) -> str | None:
        """Why the records do not belong to this node of the catalog's cluster; None if they do."""
        if not view.cluster_id or view.cluster_id == self._cluster_id:
            return None
        try:
            problem = self._cluster_problem(view.cluster_id) or self._node_problem(view)
        except StorageFailure as failure:
            return f"cannot read from the disk to which cluster and node its records belong: {failure}"
        if problem is None:
            self._cluster_id = view.cluster_id
        return problem

    def _cluster_problem(self, cluster_id: str) -> str | None:
        stored = self._store.get(keys.META, keys.CLUSTER_ID_KEY)
        if stored is None:
            stored = cluster_id.encode()
            self._store.write([Write(keys.META, keys.CLUSTER_ID_KEY, stored)])
        if stored == cluster_id.encode():
            return None
        return (
            f"the records on this disk belong to cluster {stored.decode(errors='replace')!r}, but the "
            f"coordinator belongs to cluster {cluster_id!r}; nothing is served"
        )

    def _node_problem(self, view: CatalogView) -> str | None:
        stored = self._store.get(keys.META, keys.NODE_ID_KEY)
        if stored is None:
            whose = self._other_leaders(view)
            if whose is None:
                with suppress(StorageFailure):  # a full disk can still be read, and the next start writes it
                    self._store.write([Write(keys.META, keys.NODE_ID_KEY, str(self._node_id).encode())])
                return None
        elif stored == str(self._node_id).encode():
            return None
        else:
            whose = f"leader {stored.decode(errors='replace')}"
        return (
            f"the records on this disk belong to {whose}, but this is leader {self._node_id}; nothing is served or "
            "removed. Start it with the node id of its data directory, or with another data directory"
        )

    def _other_leaders(self, view: CatalogView) -> str | None:
        """The leaders of the stored partitions if this node leads none of them and none moves here; None otherwise."""
        found: dict[int, None] = {}
        start: bytes | None = b""
        while start is not None:
            key = next((key for key, _ in self._rows.scan(keys.LOG, start)), None)  # without reading a whole batch
            if key is None:
                break
            prefix = key[: keys.PARTITION_PREFIX_BYTES]
            start = keys.after_prefix(prefix)
            number = int.from_bytes(prefix[TOPIC_ID_LENGTH:], "big")
            partition = view.partition(TopicPartition(prefix[:TOPIC_ID_LENGTH], number))
            if partition is None:
                continue
            moves_here = partition.is_moving and partition.moving_to_node_id == self._node_id
            if partition.leader_node_id in (-1, self._node_id) or moves_here:
                return None
            found[partition.leader_node_id] = None
        return f"other leaders ({', '.join(map(str, sorted(found)))})" if found else None
