"""Calls to coordinators: a group's go to the owner of its group partition, all others to the active one.

Where there are several, which one is right may change at any time, so a call is made again for ROUTING_RETRY_MS, with a
growing pause that a new view of the catalog ends. Where there is one, every call goes to it, and is made again for
RESTART_RETRY_MS, in which it may be started again: a client whose commit is refused because the coordinator is away may
lose its place in the group (librdkafka 2.16), while a broker of Kafka closes the connection. So a call is made again

- when the answer is NOT_COORDINATOR, which says that nothing was done, where there are several;
- when the call did not start (CallNotStarted), or nobody is known to be right yet;
- when its outcome is unknown (the connection was lost, or the view says for OWNER_CHANGED_GRACE_MS that another one is
  right by now), only where doing it twice is the same as doing it once: `REPEATABLE_METHODS`.

A call that gets no answer in its time is not made again. What is still refused in the end raises NotCoordinator or
another ChannelUnavailable; Kafka's clients look the coordinator up again and come back.

Committed offsets must not overtake each other: a call with an `order_key` is not made again once a newer one with the
same key was begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_rpc import methods
from kshare_rpc.catalog import CatalogView
from kshare_rpc.network import (
    CallNotStarted,
    CallTimeout,
    Channel,
    ChannelUnavailable,
    Method,
    Payload,
    Request,
    Response,
)

ROUTING_RETRY_MS = 2_000
"""How long after its first refusal a call is made again."""
RESTART_RETRY_MS = 5_000
"""The same where there is one coordinator, which is awaited."""
FIRST_BACK_OFF_MS = 10
LONGEST_BACK_OFF_MS = 250
OWNER_CHANGED_GRACE_MS = 1_000
"""How long a former owner may still answer what it was asked before."""

REPEATABLE_METHODS: frozenset[Method[Any, Any]] = frozenset(
    {
        # They change nothing.
        methods.OFFSET_FETCH,
        methods.LIST_GROUPS,
        methods.DESCRIBE_GROUPS,
        methods.SHARE_GROUP_DESCRIBE,
        methods.CONSUMER_GROUP_DESCRIBE,
        methods.DESCRIBE_SHARE_GROUP_OFFSETS,
        methods.DESCRIBE_TRANSACTIONS,
        methods.LIST_TRANSACTIONS,
        methods.DESCRIBE_CATALOG,
        methods.DESCRIBE_NODES,
        methods.DESCRIBE_STATE_PARTITIONS,
        # They say what shall be. (So do those about a transaction, but late they would be of the producer's next one.)
        methods.OFFSET_COMMIT,
        methods.DRAIN_SHARE_COORDINATOR,
        # A member says where it is; clients send the same again themselves when no answer came.
        methods.HEARTBEAT,
        methods.SYNC_GROUP,
    }
)
"""What may be done twice. Heartbeats of share and consumer groups are, too, from a member that is there already."""

_HEARTBEATS: tuple[Method[Any, Any], ...] = (methods.SHARE_GROUP_HEARTBEAT, methods.CONSUMER_GROUP_HEARTBEAT)


class NoCoordinator(CallNotStarted):
    """No live coordinator is known that owns what the call is about."""


class NotCoordinator(CallNotStarted):
    """The coordinator that should own what the call is about says that it does not; nothing was done."""


class GroupResult(Protocol):
    """A group's part of an answer about several."""

    @property
    def group_id(self) -> str: ...

    @property
    def error_code(self) -> int: ...


class Coordinators(Protocol):
    """What is known of them; see CatalogFollower."""

    @property
    def view(self) -> CatalogView: ...

    @property
    def active_address(self) -> str: ...

    @property
    def has_several_coordinators(self) -> bool: ...

    def channel(self, address: str) -> Channel: ...

    async def wait_for_change(self, *, timeout_ms: float) -> None: ...


Result = TypeVar("Result", bound=GroupResult)
Find = Callable[[], str | None]
"""Where the right coordinator is now; None: not known."""


def is_refused(answer: Message) -> bool:
    """Whether the coordinator that was asked is not the right one, and did nothing."""
    return _error_code(answer) == ErrorCode.NOT_COORDINATOR


def may_be_repeated(method: Method[Any, Any], request: Any) -> bool:
    """Whether the call may be made again when it is not known whether it took effect."""
    if method in _HEARTBEATS:  # 0 joins, below 0 leaves
        return bool(request.member_id) and request.member_epoch > 0
    return method in REPEATABLE_METHODS


class CoordinatorCalls:
    """See the module's text. All raise CallFailed or one of its kinds where there is no answer."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._under_way: dict[asyncio.Timeout, tuple[str, Find]] = {}
        """Which coordinator each call waits for, and how to know the right one."""
        self._newest: dict[Hashable, object] = {}
        """The newest call of each order key, while one is under way."""
        self._is_stopping = False
        self.active: Channel = _ActiveCoordinator(self)

    async def call_active(self, method: Method[Request, Response], request: Request, *, timeout_ms: int) -> Response:
        """Of the catalog and of transactions."""
        return await self._call(lambda: self._coordinators.active_address, method, request, timeout_ms)

    async def call_owner(
        self,
        group_id: str,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_ms: int,
        order_key: Hashable = None,
    ) -> Response:
        """Of one group."""
        if order_key is None:
            return await self._call(lambda: self._owner(group_id), method, request, timeout_ms)
        this = self._newest[order_key] = object()
        try:
            return await self._call(
                lambda: self._owner(group_id), method, request, timeout_ms, lambda: self._newest.get(order_key) is this
            )
        finally:
            if self._newest.get(order_key) is this:
                del self._newest[order_key]

    async def call_owners(
        self,
        group_ids: Sequence[str],
        method: Method[Request, Response],
        *,
        request_of: Callable[[Sequence[str]], Request],
        results_of: Callable[[Response], Sequence[Result]],
        refusal_of: Callable[[str, ErrorCode, str], Result],
        timeout_ms: int,
    ) -> list[Result]:
        """Of several groups: one call for each coordinator, and the results in the order of `group_ids`.

        Where one gives no answer its groups get `refusal_of(group id, COORDINATOR_NOT_AVAILABLE, why)`. With one
        coordinator the answer is as that gives it.
        """
        if not self._coordinators.has_several_coordinators:
            answer = await self.call_active(method, request_of(group_ids), timeout_ms=timeout_ms)
            return list(results_of(answer))
        portion = _Portion(method, request_of, results_of, refusal_of, timeout_ms)
        results: dict[str, Result] = {}
        waiting = _Waiting()
        remaining: dict[str, str | None] = {group_id: self._owner(group_id) for group_id in group_ids}
        while remaining:
            by_address: dict[str | None, list[str]] = {}
            for group_id, address in remaining.items():
                by_address.setdefault(address, []).append(group_id)
            answers = await asyncio.gather(*(self._ask(portion, *each) for each in by_address.items()))
            again: list[str] = []
            for found, may_repeat in answers:
                results.update((result.group_id, result) for result in found)
                again += may_repeat
            if not again or not await waiting.may_go_on(self._coordinators):
                break
            remaining = {group_id: self._owner(group_id) for group_id in again}
        return [results[group_id] for group_id in group_ids]

    async def call_all_owners(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        covers: Callable[[Response], Sequence[int]],
        timeout_ms: int,
    ) -> list[Response]:
        """Of all groups: the answers of all coordinators; a group that was handed over meanwhile may be in two.

        `covers` gives the group partitions that an answer is about. Raises NoCoordinator where no answer came for one
        of them.
        """
        if not self._coordinators.has_several_coordinators:
            return [await self.call_active(method, request, timeout_ms=timeout_ms)]
        answers: list[Response] = []
        covered: set[int] = set()
        waiting = _Waiting()
        while True:
            for answer in await self._ask_owners_of(self._missing(covered), method, request, timeout_ms):
                covered.update(covers(answer))
                answers.append(answer)
            missing = self._missing(covered)
            if covered and not missing:
                return answers
            if not await waiting.may_go_on(self._coordinators):
                raise NoCoordinator(f"{method.path}: no coordinator answers for group partitions {missing}")

    def stop_waiting(self) -> None:
        """The node stops: from now on each call is made once, and those that wait to be made again end soon."""
        self._is_stopping = True

    def owners_changed(self) -> None:
        """A new view is here: calls that wait at somebody who is not the right one any more end soon."""
        loop = asyncio.get_running_loop()
        for limit, (address, find) in self._under_way.items():
            right = find()
            if limit.expired():
                continue
            if right in (None, address):
                limit.reschedule(None)
            elif limit.when() is None:
                limit.reschedule(loop.time() + OWNER_CHANGED_GRACE_MS / 1000)

    def _owner(self, group_id: str) -> str | None:
        coordinators = self._coordinators
        if not coordinators.has_several_coordinators:
            return coordinators.active_address
        return coordinators.view.coordinator_address(group_id)

    async def _call(
        self,
        find: Find,
        method: Method[Request, Response],
        request: Request,
        timeout_ms: int,
        is_newest: Callable[[], bool] = lambda: True,
    ) -> Response:
        has_several = self._coordinators.has_several_coordinators
        waiting = _Waiting(ROUTING_RETRY_MS if has_several else RESTART_RETRY_MS)
        refusal: ChannelUnavailable
        while True:
            address = find()
            try:
                answer = await self._call_at(address, find, method, request, timeout_ms)
            except ChannelUnavailable as failure:
                if not _may_go_elsewhere(method, request, failure):
                    raise
                refusal = failure
            else:
                if not is_refused(answer):
                    return answer
                refusal = _not_coordinator(method, address, answer)
                if not has_several:
                    raise refusal
            if self._is_stopping or not is_newest():
                raise refusal
            if not await waiting.may_go_on(self._coordinators, find() == address) or not is_newest():
                raise refusal

    async def _call_at(
        self,
        address: str | None,
        find: Find,
        method: Method[Request, Response],
        request: Request,
        timeout_ms: int,
    ) -> Response:
        if address is None:
            raise NoCoordinator(f"{method.path}: no live coordinator is known that owns the group")
        channel = self._coordinators.channel(address)
        limit = asyncio.timeout(None)
        self._under_way[limit] = (address, find)
        try:
            async with limit:
                answer, _ = await channel.call(method, request, timeout_ms=timeout_ms)
        except TimeoutError:
            text = f"{method.path}: {address} did not answer, and another coordinator took over from it"
            raise ChannelUnavailable(text) from None
        finally:
            del self._under_way[limit]
        return answer

    async def _ask(
        self, portion: _Portion[Request, Response, Result], address: str | None, group_ids: Sequence[str]
    ) -> tuple[list[Result], list[str]]:
        """Results for groups of one coordinator, and those of them that may be asked for again."""
        request = portion.request_of(group_ids)
        try:
            answer = await self._call_at(
                address, lambda: self._sole_owner(group_ids), portion.method, request, portion.timeout_ms
            )
        except ChannelUnavailable as failure:
            text = f"The coordinator gave no answer: {failure}"
            refused = [
                portion.refusal_of(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, text) for group_id in group_ids
            ]
            return refused, list(group_ids) if _may_go_elsewhere(portion.method, request, failure) else []
        found = {result.group_id: result for result in portion.results_of(answer)}
        text = "The coordinator's answer does not name the group"
        results = [
            found.get(group_id) or portion.refusal_of(group_id, ErrorCode.UNKNOWN_SERVER_ERROR, text)
            for group_id in group_ids
        ]
        return results, [result.group_id for result in results if result.error_code == ErrorCode.NOT_COORDINATOR]

    def _sole_owner(self, group_ids: Sequence[str]) -> str | None:
        """Where all of the groups are; None where they are at several, each of which will say what it is not."""
        owners = dict.fromkeys(map(self._owner, group_ids))
        return next(iter(owners)) if len(owners) == 1 else None

    def _missing(self, covered: Collection[int]) -> list[int]:
        count = self._coordinators.view.group_partition_count
        return [partition for partition in range(count) if partition not in covered]

    async def _ask_owners_of(
        self, partitions: Sequence[int], method: Method[Request, Response], request: Request, timeout_ms: int
    ) -> list[Response]:
        """The answers of those owners of group partitions that have one."""
        owners = dict.fromkeys(map(self._coordinators.view.group_partition_address, partitions))

        async def ask(address: str) -> Response | None:
            try:
                return await self._call_at(address, lambda: self._live(address), method, request, timeout_ms)
            except ChannelUnavailable:
                return None

        found = await asyncio.gather(*(ask(address) for address in owners if address is not None))
        return [answer for answer in found if answer is not None and not _error_code(answer)]

    def _live(self, address: str) -> str | None:
        return address if address in self._coordinators.view.coordinators.values() else ""


class _Portion(Generic[Request, Response, Result]):
    """What `call_owners` was given."""

    def __init__(
        self,
        method: Method[Request, Response],
        request_of: Callable[[Sequence[str]], Request],
        results_of: Callable[[Response], Sequence[Result]],
        refusal_of: Callable[[str, ErrorCode, str], Result],
        timeout_ms: int,
    ) -> None:
        self.method = method
        self.request_of = request_of
        self.results_of = results_of
        self.refusal_of = refusal_of
        self.timeout_ms = timeout_ms


class _Waiting:
    """The pauses between the attempts of one call."""

    def __init__(self, patience_ms: int = ROUTING_RETRY_MS) -> None:
        self._patience_ms = patience_ms
        self._give_up_at: float | None = None
        self._back_off_ms = FIRST_BACK_OFF_MS

    async def may_go_on(self, coordinators: Coordinators, is_same_again: bool = True) -> bool:
        """Waits, and says whether to try again; a new view ends the pause, where the same would be asked again."""
        now = asyncio.get_running_loop().time()
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_ms / 1000
        if now >= self._give_up_at:
            return False
        if is_same_again:
            await coordinators.wait_for_change(timeout_ms=self._back_off_ms)
            self._back_off_ms = min(LONGEST_BACK_OFF_MS, self._back_off_ms * 2)
        else:
            await asyncio.sleep(FIRST_BACK_OFF_MS / 1000)
        return True


class _ActiveCoordinator:
    """A `Channel` to the active coordinator, wherever it is; for callers that know no others."""

    def __init__(self, calls: CoordinatorCalls) -> None:
        self._calls = calls

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        assert not payload, "no method of the coordinator takes a payload"
        return await self._calls.call_active(method, request, timeout_ms=timeout_ms), memoryview(b"")

    async def close(self) -> None:
        """The channels are the follower's."""


def _error_code(answer: Message) -> int:
    """Of the answer as a whole; some have only those of their parts."""
    return int(getattr(answer, "error_code", ErrorCode.NONE))


def _not_coordinator(method: Method[Any, Any], address: str | None, answer: Any) -> NotCoordinator:
    return NotCoordinator(f"{method.path}: {address} is not the coordinator: {answer.error_message}")


def _may_go_elsewhere(method: Method[Any, Any], request: Any, failure: ChannelUnavailable) -> bool:
    if isinstance(failure, CallTimeout):
        return False
    return isinstance(failure, CallNotStarted) or may_be_repeated(method, request)
