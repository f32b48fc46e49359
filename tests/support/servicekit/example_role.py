"""A role's `__main__` for tests of the process around it: a node that opens a store and serves one method.

Run as `python example_role.py MODE flags…`; MODE says how the node behaves.
"""

from __future__ import annotations

import asyncio
import os
import sys

import structlog

from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.network import Network, Server, Service
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process import role_main
from kshare_servicekit.process_settings import ProcessSettings


class ExampleNode:
    def __init__(self, environment: Environment, network: Network, settings: ProcessSettings, mode: str) -> None:
        if mode == "settings":
            raise SettingsError("server.properties: num.partitions is 'x', it must be a number")
        self._environment = environment
        self._network = network
        self._settings = settings
        self._mode = mode
        self._server: Server | None = None
        self._store: KeyValueStore | None = None
        self._troubles = ["the disk is slow"] if mode == "unhealthy" else []
        self._lacks_problems = mode == "raising"

    async def start(self) -> None:
        structlog.stdlib.get_logger("example").info("starting", loop=type(asyncio.get_running_loop()).__module__)
        if self._mode == "hang":
            await asyncio.Event().wait()
        if self._mode == "broken":
            raise StorageFailure("the disk is gone")
        if self._mode == "bug":
            raise RuntimeError("a bug")
        self._store = self._environment.open_store("example")
        service = Service("Leader", {SHARE_ACKNOWLEDGE: self._acknowledge})
        self._server = await self._network.serve(self._settings.listen, [service])

    async def failed(self) -> str:
        if self._mode != "failing":
            await asyncio.Event().wait()
        return "its Java process has ended"

    async def stop(self, grace_ms: int) -> None:
        if self._server is not None:
            await self._server.stop(grace_ms)
        if self._store is not None:
            self._store.close()

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    def problems(self) -> list[str]:
        if self._lacks_problems:
            self._lacks_problems = False
            raise RuntimeError("a bug")
        return self._troubles

    async def _acknowledge(
        self, request: leader_pb2.ShareAcknowledgeRequest, _: memoryview
    ) -> leader_pb2.ShareAcknowledgeResponse:
        return leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=os.getpid())


def main() -> int:
    mode = sys.argv[1]
    return role_main(
        "example",
        ProcessSettings,
        lambda environment, network, settings: ExampleNode(environment, network, settings, mode),
        use_uvloop=mode == "uvloop",
        arguments=sys.argv[2:],
    )


if __name__ == "__main__":
    sys.exit(main())
