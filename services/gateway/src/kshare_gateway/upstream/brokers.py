"""The existing cluster as the gateway knows it: brokers, API versions and features, asked for again and again.

The gateway asks as its own user (`kshare.upstream.*`). What a client may see is asked on the client's connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import log
from kshare_upstream.connection import ConnectionLost, NotServed
from kshare_upstream.port import Broker, ClusterView, OpenedUpstream
from kshare_upstream.sasl import AuthenticationFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.responses.api_versions import ApiVersionsResponse

REFRESH_MS = 2_000
GONE_LIMIT = 1_000
"""Brokers that are gone and whose addresses are kept."""
API_VERSIONS = VersionRange(0, 4)
SOFTWARE_NAME, SOFTWARE_VERSION = "kshare", "0.1.0"


class UpstreamBrokers:
    """See the module docstring; `on_view` is called after each answer, before the next one is asked for."""

    def __init__(self, upstream: OpenedUpstream, on_view: Callable[[ClusterView], Awaitable[None]]) -> None:
        self._upstream = upstream
        self._on_view = on_view
        self._refreshing: asyncio.Task[None] | None = None
        self._turn = 0
        self.problem: str | None = "no broker of the existing cluster answered yet"
        self.view = ClusterView(None, -1, {})
        self._gone: dict[int, Broker] = {}
        """Brokers of earlier views that are not in the newest one, by id."""
        self.versions: Mapping[int, VersionRange] = {}
        """The versions that every broker serves, by API key."""
        self.features = ApiVersionsResponse()
        """A broker's answer to ApiVersions."""

    async def start(self) -> None:
        """Returns once a broker answered."""
        while not await self._refreshed():
            await asyncio.sleep(REFRESH_MS / 1000)
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="brokers of the cluster")

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        await self._upstream.close()

    async def look_again(self) -> None:
        """Asks now, because an answer named a broker that is not known here."""
        await self._refreshed()

    def version(self, api_key: int, served: VersionRange) -> int:
        """The highest version of an API that the cluster serves within `served`; KafkaError UNSUPPORTED_VERSION."""
        theirs = self.versions.get(api_key, VersionRange(0, -1))
        highest = min(theirs.maximum, served.maximum)
        if highest < max(theirs.minimum, served.minimum):
            name = ApiKey(api_key).api_name
            text = f"The cluster serves {name} in versions {theirs.minimum} to {theirs.maximum}"
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{text}; {served.minimum} to {served.maximum} are needed here"
            )
        return highest

    def broker(self, node_id: int) -> Broker:
        """A broker by its id, also one that is gone: a client may hear first that it is back; ConnectionLost."""
        found = self.view.brokers.get(node_id) or self._gone.get(node_id)
        if found is None:
            raise ConnectionLost(f"broker {node_id} of the existing cluster is not known now")
        return found

    def any_broker(self) -> Broker:
        """The brokers in turn; ConnectionLost without one."""
        brokers = [self.view.brokers[node_id] for node_id in sorted(self.view.brokers)]
        if not brokers:
            raise ConnectionLost("the existing cluster has no known broker")
        self._turn += 1
        return brokers[self._turn % len(brokers)]

    def controller(self) -> Broker:
        """The controller of a cluster with ZooKeeper; with KRaft the broker that Metadata names, which is any one."""
        found = self.view.brokers.get(self.view.controller_id)
        return self.any_broker() if found is None else found

    def is_former_controller(self, node_id: int) -> bool:
        """Whether a broker refuses the requests for the controller of a cluster with ZooKeeper, since that is another.

        With KRaft, where brokers serve DescribeQuorum, each passes them on, and Metadata names a random broker.
        """
        controller_id = self.view.controller_id
        has_quorum = ApiKey.DESCRIBE_QUORUM in self.versions
        return not has_quorum and controller_id in self.view.brokers and controller_id != node_id

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_MS / 1000)
            await self._refreshed()

    async def _refreshed(self) -> bool:
        upstream = self._upstream
        try:
            view = await upstream.describe([])
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
            features = await upstream.ask_any(request, API_VERSIONS)
            versions = await self._common_versions(features)
        except (ConnectionLost, AuthenticationFailed, NotServed) as error:
            if self.problem != str(error):
                log.warning("the existing cluster does not answer, retrying: %s", error)
            self.problem = str(error)
            return False
        self._note_gone(view)
        self.view, self.versions, self.features, self.problem = view, versions, features, None
        await self._on_view(view)
        return True

    def _note_gone(self, view: ClusterView) -> None:
        self._gone.update(self.view.brokers)
        self._gone = {node_id: broker for node_id, broker in self._gone.items() if node_id not in view.brokers}
        while len(self._gone) > GONE_LIMIT:
            del self._gone[next(iter(self._gone))]

    async def _common_versions(self, answer: ApiVersionsResponse) -> Mapping[int, VersionRange]:
        """Of all brokers; while one of them does not answer, as before, and at first those of the one that did."""
        try:
            found = await self._upstream.versions()
        except ConnectionLost:
            found = {}
        own = {api.api_key: VersionRange(api.min_version, api.max_version) for api in answer.api_keys}
        return found or self.versions or own
