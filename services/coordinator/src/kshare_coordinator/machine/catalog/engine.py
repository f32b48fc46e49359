"""The engine of `kshare.engine`, as far as the catalog depends on it.

With the embedded engine the rows of a partition are on its node's disk, and topics are made in the catalog. With the
kafka engine both are in an existing cluster: any node can take over any partition at once, and the catalog mirrors the
cluster's topics (`mirrored_topics`), so nothing else may change them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Where the data of partitions is."""

    data_is_local: bool = True
    """Whether it is on the disk of the node that serves it."""
    cluster: str = ""
    """The addresses of the existing cluster."""

    @classmethod
    def of(cls, configs: Configs) -> Engine:
        if configs.text("kshare.engine") == EMBEDDED:
            return cls()
        servers = configs["kshare.upstream.bootstrap.servers"]
        assert isinstance(servers, tuple)
        return cls(data_is_local=False, cluster=",".join(map(str, servers)))

    def check_has_topics(self, verb: str) -> None:
        """KafkaError POLICY_VIOLATION where topics are those of an existing cluster, which alone changes them."""
        if not self.data_is_local:
            text = f"Topics are in the Kafka cluster at {self.cluster} (kshare.engine=kafka); {verb} them there"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
