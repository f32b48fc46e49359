"""The catalog follower: a task that registers the node and keeps its `CatalogView` current.

`CatalogFollower` registers the node, then keeps one WatchCatalog call waiting at the coordinator. Each answer yields
the next `CatalogView` and renews the node's lease. While the coordinator is away, the last view stays. When the
registration is gone, the node registers again (a new epoch) and fetches a full view.

**Several coordinators.** Only the active one has the catalog. The follower stays with the coordinator that answers. It
looks for another when the connection is lost, the call times out, or the answer is an error. It goes to the address in
NOT_COORDINATOR, else through all known addresses (configured ones and those of the newest view), each once. Then it
pauses for RETRY_INTERVAL_MS, so coordinators that point at each other cost a few calls per round. From a coordinator
that did not give the newest view, it requests the full catalog.

**The lease.** It counts from the time at which the call was sent that was answered without an error; no other answer
prolongs it. Nodes act on it for `kshare_core.leases.held_s`. A coordinator that becomes active gives every node a fresh
lease, which ends later. `deregister` returns the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.catalog import CatalogView, ViewDraft
from kshare_rpc.coordinator_calls import CoordinatorCalls
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DEREGISTER_NODE, REGISTER_NODE, WATCH_CATALOG
from kshare_rpc.network import CallFailed, Channel, Network, StreamChannel

WATCH_WAIT_MS = 3_000
CALL_TIMEOUT_MS = 5_000
RETRY_INTERVAL_MS = 250
EARLY_RETRY_INTERVAL_MS, EARLY_RETRIES = 50, 40
"""For the first registration: nodes often start together, and the coordinator listens a moment later."""
DEREGISTER_TIMEOUT_MS = 500
"""How long a stopping node waits for the coordinator at most; its lease expires anyway."""

SEVERAL_WATCH_WAIT_MS = 1_000
SEVERAL_CALL_TIMEOUT_MS = 1_500
"""Shorter with several coordinators: one that is silent for longer may be gone, and another one active."""


class RegistrationRefused(Exception):
    """The coordinator refused to register this node; the text says why."""


class _NotAnswered(Exception):
    """The coordinator answered with an error; `points_at` is the active one's address, empty if it does not know."""

    def __init__(self, text: str, points_at: str = "") -> None:
        super().__init__(text)
        self.points_at = points_at


class CatalogFollower:
    """Registers a node and follows the catalog; see the module's text.

    `coordinator_address` may have several addresses, separated by commas. `on_view(old, new)` is called for each new
    view, in order, before the view is published.
    """

    def __init__(
        self,
        *,
        network: Network,
        coordinator_address: str,
        on_view: Callable[[CatalogView, CatalogView], None] = lambda old, new: None,
        on_problem: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._network = network
        self._on_view = on_view
        self._on_problem = on_problem
        self._channels: dict[str, StreamChannel] = {}
        self._addresses = tuple(address.strip() for address in coordinator_address.split(","))
        self._has_several = len(self._addresses) > 1
        self._tried: dict[str, str] = {}
        """The failure of each address that was tried since the last success or pause."""
        self._viewed_at = ""
        """The address that the newest view came from."""
        self._node: coordinator_pb2.Node | None = None
        self._highest_leader_epoch: Callable[[], int] = lambda: 0
        self._producer_id_end: Callable[[], int] = lambda: 0
        self._must_register = False
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.active_address = self._addresses[0]
        """The address of the active coordinator, or the one that is tried now."""
        self.view = CatalogView()
        self.node_epoch = -1
        self.lease_renewed_at: float | None = None
        """Loop time at which the last call that succeeded was sent: the lease counts from it."""
        self.lease_ms = 0
        self.coordinators = CoordinatorCalls(self)
        """Calls to the coordinators of groups, and to the active one."""

    @property
    def has_several_coordinators(self) -> bool:
        """Whether several coordinators are or were known: then the view routes calls, else all go to one address."""
        return self._has_several

    @property
    def coordinator(self) -> Channel:
        """A channel that follows the active coordinator; see `CoordinatorCalls.active`."""
        return self.coordinators.active

    def channel(self, address: str) -> StreamChannel:
        """The channel to an address; one is kept per address."""
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        return self._channels[address]

    async def start(
        self,
        node: coordinator_pb2.Node,
        *,
        highest_leader_epoch: Callable[[], int] = lambda: 0,
        producer_id_end: Callable[[], int] = lambda: 0,
    ) -> None:
        """Registers the node; returns when the first view has arrived.

        `highest_leader_epoch` and `producer_id_end` are called at each registration; see RegisterNodeRequest.
        """
        self._node = node
        self._highest_leader_epoch = highest_leader_epoch
        self._producer_id_end = producer_id_end
        retries = 0
        while not await self._attempt(self._register):
            await self._rest(EARLY_RETRY_INTERVAL_MS if retries < EARLY_RETRIES else RETRY_INTERVAL_MS)
            retries += 1
        while not await self._attempt(self._watch_once):
            await self._rest()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="catalog-follower")

    def register_again(self) -> None:
        """Registers the node as a new one before the next call: `highest_leader_epoch` has grown.

        The coordinator takes a node that it knows already for a repetition, so the node gets another incarnation.
        """
        self._must_register = True

    async def deregister(self) -> None:
        """Removes the node from the catalog if the coordinator answers; the last view stays.

        To be called when the node no longer serves: its partitions may now go to other nodes.
        """
        await self._end_following()
        if self._node is None or self.lease_renewed_at is None:
            return
        request = coordinator_pb2.DeregisterNodeRequest(
            role=self._node.role, node_id=self._node.node_id, incarnation=self._node.incarnation
        )
        try:
            answer, _ = await self.channel(self.active_address).call(
                DEREGISTER_NODE, request, timeout_ms=DEREGISTER_TIMEOUT_MS
            )
        except CallFailed as failure:
            self._on_problem(f"the lease could not be released and will expire: {failure}")
            return
        if answer.error_code:
            self._on_problem(f"the lease could not be released and will expire: {answer.error_message}")

    async def _end_following(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def stop(self) -> None:
        await self._end_following()
        for channel in self._channels.values():
            await channel.close()

    async def wait_for_version(self, version: int, *, timeout_ms: int) -> bool:
        """Whether the view reached `version` in time; after a change, so that its author sees it in this role too."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while self.view.version < version:
            remaining_ms = (deadline - asyncio.get_running_loop().time()) * 1000
            if remaining_ms <= 0:
                return False
            await self.wait_for_change(timeout_ms=remaining_ms)
        return True

    async def wait_for_change(self, *, timeout_ms: float) -> None:
        """Returns at the next view, or after `timeout_ms`."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_ms / 1000)
        except TimeoutError:
            return

    async def _follow(self) -> None:
        while True:
            try:
                followed = await self._attempt(self._watch_once)
            except Exception as error:  # a bug in on_view must not end the lease silently; the old view stays
                if not isinstance(error, StorageFailure):
                    report_contained_bug("the catalog's next version could not be applied", error)
                self._on_problem(f"the catalog's next version could not be applied: {type(error).__name__}: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
                continue
            if not followed:
                await self._rest()

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except (CallFailed, RegistrationRefused) as problem:
            self._look_elsewhere(str(problem), "")
            return False
        except _NotAnswered as problem:
            self._look_elsewhere(str(problem), problem.points_at)
            return False
        self._tried.clear()
        return True

    def _look_elsewhere(self, problem: str, points_at: str) -> None:
        """Selects the next address to try as the active one; reports a problem if all were tried."""
        self._has_several = self._has_several or points_at not in ("", self.active_address)
        others = self.view.coordinators.values() if self._has_several else ()
        known = list(dict.fromkeys([*self._addresses, *others]))
        current = self.active_address
        self._tried[current] = problem
        place = known.index(current) if current in known else -1
        in_turn = [points_at] if points_at else []
        in_turn += known[place + 1 :] + known[: place + 1]
        fresh = [address for address in in_turn if address not in self._tried]
        # If all were tried, the next round begins at the address in NOT_COORDINATOR, if any; see `_rest`.
        self.active_address = (fresh or in_turn)[0]
        if not fresh:
            self._on_problem("; ".join(self._tried.values()))

    async def _rest(self, pause_ms: int = RETRY_INTERVAL_MS) -> None:
        """The pause before the next attempt; none while this round has addresses that were not tried."""
        if self.active_address in self._tried:
            self._tried.clear()
            await asyncio.sleep(pause_ms / 1000)

    async def _register(self) -> None:
        assert self._node is not None
        sent_at = asyncio.get_running_loop().time()
        request = coordinator_pb2.RegisterNodeRequest(
            node=self._node,
            highest_leader_epoch=self._highest_leader_epoch(),
            producer_id_end=self._producer_id_end(),
        )
        timeout_ms = SEVERAL_CALL_TIMEOUT_MS if self._has_several else CALL_TIMEOUT_MS
        answer, _ = await self.channel(self.active_address).call(REGISTER_NODE, request, timeout_ms=timeout_ms)
        if answer.error_code == ErrorCode.NOT_COORDINATOR:
            raise _NotAnswered(answer.error_message, answer.active_coordinator_address)
        if answer.error_code:
            raise RegistrationRefused(answer.error_message)
        self.node_epoch = answer.node_epoch
        self.lease_ms = answer.lease_ms
        self.lease_renewed_at = sent_at
        self.view = replace(self.view, version=0)

    async def _watch_once(self) -> None:
        """One answer, which may come in pieces; the view changes when all pieces have arrived."""
        if self._must_register:
            assert self._node is not None
            first, _, number = self._node.incarnation.partition("-")
            self._node.incarnation = f"{first}-{int(number or 0) + 1}"
            await self._register()
            self._must_register = False
        address = self.active_address
        draft, piece = ViewDraft(self.view), await self._watch(address, None)
        while piece is not None:
            draft.add(piece)
            if not piece.more:
                self._take(address, draft.finished(piece))
                return
            former, piece = piece, await self._watch(address, piece)
            if piece is not None and piece.piece == 0:
                self._on_problem(f"{address} no longer has transfer {former.transfer_id}; restarting the transfer")
                draft = ViewDraft(self.view)

    def _take(self, address: str, new: CatalogView) -> None:
        old = self.view
        if new is not old:
            self._on_view(old, new)
            self.view = new
            self._has_several = self._has_several or len(new.coordinators) > 1
        if new is not old or address != self._viewed_at:
            self._viewed_at = address
            self._changed.set()
            self.coordinators.owners_changed()

    async def _watch(
        self, address: str, former: coordinator_pb2.WatchCatalogResponse | None
    ) -> coordinator_pb2.WatchCatalogResponse | None:
        """A new answer, or the piece after `former`; None if the node had to register again first."""
        assert self._node is not None
        sent_at = asyncio.get_running_loop().time()
        is_new_here = self._has_several and address != self._viewed_at
        wait_ms, timeout_ms = WATCH_WAIT_MS, CALL_TIMEOUT_MS
        if self._has_several:
            wait_ms, timeout_ms = SEVERAL_WATCH_WAIT_MS, SEVERAL_CALL_TIMEOUT_MS
        request = coordinator_pb2.WatchCatalogRequest(
            role=self._node.role,
            node_id=self._node.node_id,
            incarnation=self._node.incarnation,
            after_version=0 if is_new_here else self.view.version,
            after_coordinators_version=0 if is_new_here else self.view.coordinators_version,
            max_wait_ms=wait_ms,
            takes_pieces=True,
            start_id=self.view.starts[-1].start_id if self.view.starts else "",
        )
        if former is not None:
            request.transfer_id, request.piece = former.transfer_id, former.piece + 1
        answer, _ = await self.channel(address).call(WATCH_CATALOG, request, timeout_ms=wait_ms + timeout_ms)
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._on_problem(answer.error_message)
            await self._register()
            return None
        if answer.error_code:
            text = f"{address} refused WatchCatalog with error {answer.error_code}: {answer.error_message}"
            raise _NotAnswered(text, answer.active_coordinator_address)
        self.lease_renewed_at = sent_at
        return answer
