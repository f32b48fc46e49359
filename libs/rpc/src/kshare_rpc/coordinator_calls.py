"""Calls to coordinators: a group's calls go to the owner of its group partition, all others to the active coordinator.

Failed calls are retried with back-off. With several coordinators, ownership may change at any time: a call is retried
for ROUTING_RETRY_MS, and a new view of the catalog ends the back-off. With one coordinator every call goes to it and is
retried for RESTART_RETRY_MS, in which the coordinator may restart. The reason: a client whose commit is refused because
the coordinator is away may leave the group (librdkafka 2.16); a Kafka broker closes the connection. A call is retried

- when the answer is NOT_COORDINATOR, which guarantees that nothing was done, with several coordinators;
- when the call did not start (CallNotStarted), or no owner is known yet;
- when its outcome is unknown (the connection was lost, or the view has named another owner for OWNER_CHANGED_GRACE_MS),
  only if the method is idempotent (`is_repeatable`). A heartbeat of a share or consumer group is, from a member that
  has already joined.

A call that times out is not retried. When the retries end, the last refusal raises NotCoordinator or another
ChannelUnavailable; Kafka's clients then look up the coordinator and retry.

Committed offsets must not overtake each other: a call with an `order_key` is not retried once a newer call with the
same key has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
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
"""How long after its first refusal a call is retried."""
RESTART_RETRY_MS = 5_000
"""The same with one coordinator: time for its restart."""
FIRST_BACK_OFF_MS = 10
LONGEST_BACK_OFF_MS = 250
OWNER_CHANGED_GRACE_MS = 1_000
"""How long a former owner may still answer calls that were sent to it before."""

AS_BEFORE = -1
"""The rebalance timeout of a ConsumerGroupHeartbeat that says only what has changed."""
_HEARTBEATS: tuple[Method[Any, Any], ...] = (methods.SHARE_GROUP_HEARTBEAT, methods.CONSUMER_GROUP_HEARTBEAT)


class NoCoordinator(CallNotStarted):
    """No live owner of the call's group partitions is known."""


class NotCoordinator(CallNotStarted):
    """The coordinator that should own the call's group answered NOT_COORDINATOR; nothing was done."""


class GroupResult(Protocol):
    """One group's result in an answer about several groups."""

    @property
    def group_id(self) -> str: ...

    @property
    def error_code(self) -> int: ...


class Coordinators(Protocol):
    """The known coordinators; see CatalogFollower."""

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
"""The address of the call's coordinator now; None: not known."""


def is_refused(answer: Message) -> bool:
    """Whether the answer is NOT_COORDINATOR: the coordinator did nothing."""
    return _error_code(answer) == ErrorCode.NOT_COORDINATOR


def may_be_repeated(method: Method[Any, Any], request: Any) -> bool:
    """Whether a call is idempotent, so that it may be retried when its outcome is unknown."""
    if method in _HEARTBEATS:  # 0 joins, below 0 leaves
        is_of_a_member = bool(request.member_id) and request.member_epoch > 0
        return is_of_a_member and (method is not methods.CONSUMER_GROUP_HEARTBEAT or _says_everything(request))
    return method.is_repeatable


def _says_everything(request: pb.ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the answer has the assignment, even if the call before it has made the member's step already.

    Otherwise the assignment of that step would reach nobody: the member fetches nothing, or gives nothing back. Clients
    send everything after an error, so it is theirs to repeat.
    """
    has_topics = request.has_subscribed_topic_names or request.has_subscribed_topic_regex
    return request.rebalance_timeout_ms != AS_BEFORE and has_topics and request.has_owned_partitions


class CoordinatorCalls:
    """Routes and retries calls; see the module's text. Without an answer, all raise CallFailed or a subclass."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._under_way: dict[asyncio.Timeout, tuple[str, Find]] = {}
        """The coordinator that each call waits for, and how to find the current one."""
        self._newest: dict[Hashable, object] = {}
        """The newest call of each order key, while one is in flight."""
        self._is_stopping = False
        self.active: Channel = _ActiveCoordinator(self)

    async def call_active(self, method: Method[Request, Response], request: Request, *, timeout_ms: int) -> Response:
        """A call to the active coordinator, about the catalog or transactions."""
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
        """A call about one group, to its owner."""
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
        """Calls about several groups: one call per coordinator; the results are in the order of `group_ids`.

        Groups of a coordinator that does not answer get `refusal_of(group id, COORDINATOR_NOT_AVAILABLE, why)`. With
        one coordinator its answer is returned as it is.
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
            if not again or self._is_stopping or not await waiting.may_go_on(self._coordinators):
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
        """A call about all groups, to all coordinators; a group that changes its owner meanwhile may be in two answers.

        `covers` gives the group partitions of an answer. Raises NoCoordinator if a group partition got no answer.
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
            if self._is_stopping or not await waiting.may_go_on(self._coordinators):
                raise NoCoordinator(f"{method.path}: no coordinator responds for group partitions {missing}")

    def stop_waiting(self) -> None:
        """Ends the retries of all calls, for a node that stops: calls in back-off end soon."""
        self._is_stopping = True

    def owners_changed(self) -> None:
        """After a new view: calls in flight to a former owner end after OWNER_CHANGED_GRACE_MS."""
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
            raise NoCoordinator(f"{method.path}: no live coordinator owns the group")
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
        """The results for the groups of one coordinator, and the group ids that may be retried."""
        request = portion.request_of(group_ids)
        try:
            answer = await self._call_at(
                address, lambda: self._sole_owner(group_ids), portion.method, request, portion.timeout_ms
            )
        except ChannelUnavailable as failure:
            text = f"The coordinator did not respond: {failure}"
            refused = [
                portion.refusal_of(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, text) for group_id in group_ids
            ]
            return refused, list(group_ids) if _may_go_elsewhere(portion.method, request, failure) else []
        found = {result.group_id: result for result in portion.results_of(answer)}
        text = "The coordinator's response does not contain the group"
        results = [
            found.get(group_id) or portion.refusal_of(group_id, ErrorCode.UNKNOWN_SERVER_ERROR, text)
            for group_id in group_ids
        ]
        return results, [result.group_id for result in results if result.error_code == ErrorCode.NOT_COORDINATOR]

    def _sole_owner(self, group_ids: Sequence[str]) -> str | None:
        """The one owner of all the groups; None if several own them: each then answers NOT_COORDINATOR for the rest."""
        owners = dict.fromkeys(map(self._owner, group_ids))
        return next(iter(owners)) if len(owners) == 1 else None

    def _missing(self, covered: Collection[int]) -> list[int]:
        count = self._coordinators.view.group_partition_count
        return [partition for partition in range(count) if partition not in covered]

    async def _ask_owners_of(
        self, partitions: Sequence[int], method: Method[Request, Response], request: Request, timeout_ms: int
    ) -> list[Response]:
        """The answers of the owners of these group partitions; owners that fail or answer an error are left out."""
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
    """The arguments of `call_owners`."""

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
    """The back-off between the attempts of one call."""

    def __init__(self, patience_ms: int = ROUTING_RETRY_MS) -> None:
        self._patience_ms = patience_ms
        self._give_up_at: float | None = None
        self._back_off_ms = FIRST_BACK_OFF_MS

    async def may_go_on(self, coordinators: Coordinators, is_same_again: bool = True) -> bool:
        """Waits, and returns whether to retry; if the address is the same again, a new view ends the back-off."""
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
    """A `Channel` that follows the active coordinator, for callers that need no other."""

    def __init__(self, calls: CoordinatorCalls) -> None:
        self._calls = calls

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        assert not payload, "no method of the coordinator takes a payload"
        return await self._calls.call_active(method, request, timeout_ms=timeout_ms), memoryview(b"")

    async def close(self) -> None:
        """Does nothing: the follower owns the channels."""


def _error_code(answer: Message) -> int:
    """The error code of the answer as a whole; NONE if the message has error codes only in its parts."""
    return int(getattr(answer, "error_code", ErrorCode.NONE))


def _not_coordinator(method: Method[Any, Any], address: str | None, answer: Any) -> NotCoordinator:
    return NotCoordinator(f"{method.path}: {address} is not the coordinator: {answer.error_message}")


def _may_go_elsewhere(method: Method[Any, Any], request: Any, failure: ChannelUnavailable) -> bool:
    if isinstance(failure, CallTimeout):
        return False
    return isinstance(failure, CallNotStarted) or may_be_repeated(method, request)
