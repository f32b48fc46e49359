"""Several scripted coordinators on an in-process network under virtual time, as unreliable as real ones.

Who is active and who owns what is what a test says. A coordinator that is asked for what another one owns answers
NOT_COORDINATOR and points where it believes the active one to be. It can be away (nobody listens), silent (it takes
calls and never answers) and wrong about the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import group_partition_of
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.in_process_network import InProcessNetwork, InProcessServer
from kshare_rpc.network import Method, Service
from support.simulation.loop import VirtualLoop

GROUP_PARTITIONS = 50
LEASE_MS = 10_000
ME = pb.Node(role=pb.ROLE_GATEWAY, node_id=7, incarnation="me")

Answer = Callable[[Any], Any]


def address_of(node_id: int) -> str:
    return f"coordinator-{node_id}:1"


def group_in(group_partition: int) -> str:
    """A group id of a group partition."""
    names = (f"group-{number}" for number in range(10_000))
    return next(name for name in names if group_partition_of(name, GROUP_PARTITIONS) == group_partition)


def all_owned_by(*node_ids: int) -> dict[int, int]:
    """The owner of each group partition, in turn."""
    return {partition: node_ids[partition % len(node_ids)] for partition in range(GROUP_PARTITIONS)}


class ScriptedCoordinator:
    """One coordinator; `answers` has what it answers to calls that are its own, by the method's name."""

    def __init__(self, cluster: ScriptedCoordinators, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, Any]] = []
        self.silent = False
        self.points_at: str | None = None
        """Where it says that the active one is; None: the truth."""
        self.refusals_left = 0
        """So many calls that are not about the catalog are refused, whoever owns what."""
        self.server: InProcessServer | None = None

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    async def start(self) -> None:
        self.server = await self.cluster.network.serve(address_of(self.node_id), [self._service()])

    async def go_away(self) -> None:
        """As when the process is killed: what is under way fails, and nobody listens."""
        assert self.server is not None
        await self.server.stop(0)
        self.server = None

    def _service(self) -> Service:
        found = [each for each in vars(methods).values() if isinstance(each, Method) and each.service == "Coordinator"]
        return Service("Coordinator", {method: self._handler(method) for method in found})

    def _handler(self, method: Method[Any, Any]) -> Callable[[Any, memoryview], Awaitable[Message]]:
        async def handle(request: Any, payload: memoryview) -> Message:
            self.calls.append((method.name, request))
            while self.silent:
                await asyncio.sleep(3600)
            if method is methods.REGISTER_NODE:
                return self._register(request)
            if method is methods.WATCH_CATALOG:
                return await self._watch(request)
            if self.refusals_left:
                self.refusals_left -= 1
                return self._refusal(method, request)
            return await self._answer(method, request)

        return handle

    @property
    def is_active(self) -> bool:
        return self.cluster.active == self.node_id

    def owns(self, group_id: str) -> bool:
        return self.cluster.owners.get(group_partition_of(group_id, GROUP_PARTITIONS)) == self.node_id

    def _active_address(self) -> str:
        if self.points_at is not None:
            return self.points_at
        return "" if self.cluster.active is None else address_of(self.cluster.active)

    def _register(self, request: Any) -> Message:
        if not self.is_active:
            return pb.RegisterNodeResponse(
                error_code=ErrorCode.NOT_COORDINATOR, active_coordinator_address=self._active_address()
            )
        self.cluster.registered[request.node.incarnation] = None
        return pb.RegisterNodeResponse(node_epoch=self.cluster.next_epoch(), lease_ms=LEASE_MS)

    async def _watch(self, request: Any) -> Message:
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while self.is_active and not self.silent and not self.cluster.has_news(request):
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                break
            await self.cluster.wait(remaining)
        while self.silent:
            await asyncio.sleep(3600)
        if not self.is_active:
            return pb.WatchCatalogResponse(
                error_code=ErrorCode.NOT_COORDINATOR, active_coordinator_address=self._active_address()
            )
        if request.incarnation not in self.cluster.registered:
            return pb.WatchCatalogResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, error_message="register again")
        return self.cluster.catalog(request.after_version)

    async def _answer(self, method: Method[Any, Any], request: Any) -> Message:
        group_id = getattr(request, "group_id", None)
        is_its_own = self.is_active if group_id is None else self.owns(group_id)
        if hasattr(request, "group_ids") or method is methods.LIST_GROUPS:
            is_its_own = True  # it answers for those that are its own
        if not is_its_own:
            return self._refusal(method, request)
        answer = self.answers[method.name](request)
        result: Message = await answer if isinstance(answer, Coroutine) else answer
        return result

    def _refusal(self, method: Method[Any, Any], request: Any) -> Message:
        code, text = ErrorCode.NOT_COORDINATOR, "another one's"
        if not hasattr(request, "group_ids"):
            refusal: Message = method.response_type(error_code=code, error_message=text)
            return refusal
        answer: Any = method.response_type()
        parts = answer.results if hasattr(answer, "results") else answer.groups
        for group_id in request.group_ids:
            parts.add(group_id=group_id, error_code=code, error_message=text)
        whole: Message = answer
        return whole


class ScriptedCoordinators:
    """All of them, and what is true: who is active and who owns what."""

    def __init__(self, *node_ids: int) -> None:
        self.network = InProcessNetwork()
        self.nodes = {node_id: ScriptedCoordinator(self, node_id) for node_id in node_ids}
        self.active: int | None = node_ids[0]
        self.owners = all_owned_by(node_ids[0])
        self.version = 1
        self.coordinators_version = 1
        self.registered: dict[str, None] = {}
        self._epoch = 0
        self._changed = asyncio.Event()

    def __getitem__(self, node_id: int) -> ScriptedCoordinator:
        return self.nodes[node_id]

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start()

    def change(self, *, active: int | None = None, owners: dict[int, int] | None = None) -> None:
        """Another owner of the catalog or of group partitions."""
        self.active = active if active is not None else self.active
        self.owners = owners if owners is not None else self.owners
        self.coordinators_version += 1
        self._wake()

    def new_version(self) -> None:
        self.version += 1
        self._wake()

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def has_news(self, request: Any) -> bool:
        known = (request.after_version, request.after_coordinators_version)
        return known != (self.version, self.coordinators_version)

    def catalog(self, after_version: int) -> pb.WatchCatalogResponse:
        live = [node_id for node_id, node in self.nodes.items() if node.server is not None]
        return pb.WatchCatalogResponse(
            version=self.version,
            full=after_version == 0,
            nodes_changed=True,
            nodes=[ME],
            coordinators=[
                pb.Node(role=pb.ROLE_COORDINATOR, node_id=node_id, rpc_address=address_of(node_id)) for node_id in live
            ],
            group_partition_owners=[
                pb.GroupPartitionOwner(partition=partition, node_id=node_id)
                for partition, node_id in self.owners.items()
            ],
            group_partition_count=GROUP_PARTITIONS,
            coordinators_version=self.coordinators_version,
        )

    async def wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def follower(self, *node_ids: int, problems: list[str] | None = None) -> CatalogFollower:
        """One that is told the addresses of these, of all where none is named."""
        addresses = [address_of(node_id) for node_id in node_ids or self.nodes]
        noted = [] if problems is None else problems
        return CatalogFollower(network=self.network, coordinator_address=",".join(addresses), on_problem=noted.append)


Scenario = Callable[[ScriptedCoordinators, CatalogFollower], Awaitable[None]]


def play(scenario: Scenario, *node_ids: int, told: tuple[int, ...] = ()) -> None:
    """Runs a scenario with a follower that is started, under virtual time."""

    async def main() -> None:
        cluster = ScriptedCoordinators(*node_ids)
        await cluster.start()
        follower = cluster.follower(*told)
        await follower.start(ME)
        await scenario(cluster, follower)
        await follower.stop()

    VirtualLoop(time_limit=600).run(main())


async def until(condition: Callable[[], bool], *, seconds: float) -> float:
    """Waits for a condition in virtual time; how many seconds that took. TimeoutError where it never holds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        if loop.time() - began > seconds:
            raise TimeoutError(f"not within {seconds} s")
        await asyncio.sleep(0.01)
    return loop.time() - began
