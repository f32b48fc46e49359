"""The routing table of a gateway in front of an existing cluster: what becomes of each API's requests.

An API is either answered here, by a row that may ask the cluster first (`handlers`), or relayed: its frames are passed
on to the cluster, and the responses back, without being decoded. A client is told the versions of both kinds. Relayed
APIs have the versions of the cluster's brokers, up to the last one without brokers' addresses beside the records.
APIs between brokers and controllers are in no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kshare_gateway.served_apis import ServedApi
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey

LAST_VERSIONS: Mapping[int, int] = {ApiKey.PRODUCE: 9, ApiKey.FETCH: 15}
"""Later versions of these responses have addresses of brokers (KIP-951)."""
ANNOUNCED_FROM: Mapping[int, int] = {ApiKey.PRODUCE: 0}
"""Of what is answered here: as `handlers.admin.api_versions` does, for librdkafka before 2.11."""
FIRST_VERSIONS: Mapping[int, int] = {ApiKey.SASL_HANDSHAKE: 1}
"""After version 0 the messages of a mechanism come without headers, so they could not be told from requests."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The table of one mode."""

    handlers: Mapping[int, ServedApi]
    """What is answered here, by API key."""
    relayed: frozenset[int]
    as_upstream: frozenset[int] = field(default_factory=frozenset)
    """Those of `handlers` that are announced in the versions that the cluster has as well."""
    for_controller: frozenset[int] = field(default_factory=frozenset)
    """Those that only the controller of a cluster with ZooKeeper carries out, where this table has to choose it."""

    def __post_init__(self) -> None:
        twice = self.relayed & self.handlers.keys()
        if twice or not self.as_upstream <= self.handlers.keys():
            raise ValueError(f"APIs {sorted(twice)} are relayed and answered here")

    def is_relayed(self, api_key: int) -> bool:
        return api_key in self.relayed

    def announced(self, upstream: Mapping[int, VersionRange]) -> dict[int, VersionRange]:
        """The versions that clients are told, by API key, in front of a cluster that serves these."""
        found: dict[int, VersionRange] = {}
        for api_key in [*self.handlers, *self.relayed]:
            if api_key in self.handlers and api_key not in self.as_upstream:
                own = self.handlers[api_key].versions
                found[api_key] = VersionRange(ANNOUNCED_FROM.get(api_key, own.minimum), own.maximum)
                continue
            theirs = upstream.get(api_key, VersionRange(0, -1))
            low = max(theirs.minimum, FIRST_VERSIONS.get(api_key, 0))
            high = min(theirs.maximum, LAST_VERSIONS.get(api_key, theirs.maximum))
            if api_key in self.handlers:
                own = self.handlers[api_key].versions
                low, high = max(low, own.minimum), min(high, own.maximum)
            if low <= high:
                found[api_key] = VersionRange(low, high)
        return dict(sorted(found.items()))
