"""The throttling of clients beyond their quotas, as in ClientQuotaManager of Kafka 4.3.1.

A response is sent at once and says for how long the client is throttled. The connection is not read for that long. A
Produce is charged with its bytes, a Fetch or ShareFetch with those of its response, and every request with the time
that the gateway's event loop worked for it. Records that a share consumer acquired are delivered although the response
is over the quota: left out, they would wait for their locks to time out.

Quotas are per gateway, as Kafka's are per broker. Without any quota a request costs a look at `is_active`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

from kshare_core.configs import Configs
from kshare_core.security.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from kshare_gateway.quotas.entities import Entity, Quota, QuotaTable
from kshare_gateway.quotas.token_bucket import TokenBucket
from kshare_rpc.generated.kshare.v1.security_pb2 import SecurityEntry
from kshare_wire.generated.api_keys import ApiKey

A = TypeVar("A")
BUCKETS_LIMIT = 100_000
"""Buckets kept; beyond it full ones are dropped, and where that is too little, the oldest."""
LONGEST_CLIENT_ID = 200
"""In letters, of a bucket's key; a longer client id is replaced by its digest, since clients choose theirs freely."""
UNTHROTTLED = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_FETCHES = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})


class Throttling:
    """The quotas of all clients of a gateway; `rows` returns the security rows of the newest catalog view."""

    def __init__(
        self, configs: Configs, rows: Callable[[], Mapping[bytes, SecurityEntry]], now_ms: Callable[[], int]
    ) -> None:
        self._configs = configs
        self._rows = rows
        self._now_ms = now_ms
        self._indexed: Mapping[bytes, SecurityEntry] | None = None
        self._table = QuotaTable({})
        self._buckets: dict[tuple[str, Entity], TokenBucket] = {}
        self.throttled_ms: dict[str, int] = {}
        """The sum of all throttle times, by quota."""

    @property
    def is_active(self) -> bool:
        """Whether any client has a quota."""
        rows = self._rows()
        if rows is not self._indexed:
            self._indexed, self._table = rows, QuotaTable(rows)
        return bool(self._table.names)

    @property
    def measures_time(self) -> bool:
        """Whether any client has a quota of time."""
        return self.is_active and REQUEST_PERCENTAGE in self._table.names

    def charge(
        self, api_key: int, user: str, client_id: str, *, request_bytes: int, response_bytes: int, busy_s: float
    ) -> int:
        """Charges a client with a request; returns for how many ms it is throttled."""
        if api_key in UNTHROTTLED:
            return 0
        throttle_ms = 0
        if api_key == ApiKey.PRODUCE:
            throttle_ms = self._record(PRODUCER_BYTE_RATE, user, client_id, request_bytes)
        elif api_key in _FETCHES:
            throttle_ms = self._record(CONSUMER_BYTE_RATE, user, client_id, response_bytes)
        longest_s = self._configs.integer("quota.window.size.seconds")
        of_time_ms = self._record(REQUEST_PERCENTAGE, user, client_id, busy_s * 100, most_owed_s=longest_s)
        return max(throttle_ms, of_time_ms)

    def take_mutations(self, user: str, client_id: str, count: int, *, is_strict: bool) -> int:
        """Charges a client with changes of partitions; returns the throttle time in ms.

        Strict: a client that owes changes is not charged, and the time is how long it has to wait for the next.
        """
        quota = self._table.of_client(CONTROLLER_MUTATION_RATE, user, client_id) if self.is_active else None
        if quota is None:
            return 0
        now_ms = self._now_ms()
        windows = self._configs.integer("controller.quota.window.num")
        burst_s = windows * self._configs.integer("controller.quota.window.size.seconds")
        bucket = self._bucket(CONTROLLER_MUTATION_RATE, quota, burst_s, now_ms)
        if is_strict and bucket.is_exhausted(now_ms):
            return self._throttled(CONTROLLER_MUTATION_RATE, bucket.throttle_ms(now_ms))
        bucket.take(count, now_ms)
        return 0 if is_strict else self._throttled(CONTROLLER_MUTATION_RATE, bucket.throttle_ms(now_ms))

    def connection_created(self, address: str) -> int:
        """Counts a connection; returns for how many ms its address is throttled, in which case it was not counted."""
        bound = self._table.of_address(address) if self.is_active else None
        if bound is None:
            return 0
        now_ms = self._now_ms()
        quota = Quota(bound, Entity(address, None))
        bucket = self._bucket(CONNECTION_CREATION_RATE, quota, self._burst_s(), now_ms)
        bucket.take(1, now_ms)
        throttle_ms = bucket.throttle_ms(now_ms)
        if throttle_ms:
            bucket.take(-1, now_ms)
        return self._throttled(CONNECTION_CREATION_RATE, throttle_ms)

    def _record(self, name: str, user: str, client_id: str, value: float, *, most_owed_s: float | None = None) -> int:
        quota = self._table.of_client(name, user, client_id)
        if quota is None:
            return 0
        now_ms = self._now_ms()
        bucket = self._bucket(name, quota, self._burst_s(), now_ms)
        bucket.take(value, now_ms, most_owed_s=most_owed_s)
        return self._throttled(name, bucket.throttle_ms(now_ms))

    def _burst_s(self) -> int:
        """As many seconds as Kafka's first windows let a client send in one."""
        return (self._configs.integer("quota.window.num") - 1) * self._configs.integer("quota.window.size.seconds")

    def _bucket(self, name: str, quota: Quota, burst_s: int, now_ms: int) -> TokenBucket:
        key = (name, with_short_client_id(quota.shared_by))
        found = self._buckets.get(key)
        if found is None:
            self._make_room(now_ms)
            found = self._buckets[key] = TokenBucket(quota.bound, max(1, burst_s), now_ms)
        elif found.rate != quota.bound:
            found.change_rate(quota.bound, now_ms)
        return found

    def _throttled(self, name: str, throttle_ms: int) -> int:
        if throttle_ms:
            self.throttled_ms[name] = self.throttled_ms.get(name, 0) + throttle_ms
        return throttle_ms

    def _make_room(self, now_ms: int) -> None:
        if len(self._buckets) < BUCKETS_LIMIT:
            return
        for key in [key for key, bucket in self._buckets.items() if bucket.is_full(now_ms)]:
            del self._buckets[key]
        # At least a tenth, since a look at all takes long.
        for key in list(islice(self._buckets, max(0, len(self._buckets) - BUCKETS_LIMIT * 9 // 10))):
            del self._buckets[key]


def with_short_client_id(entity: Entity) -> Entity:
    """The entity, or the digest in place of a client id of more than LONGEST_CLIENT_ID letters."""
    client_id = entity.client_id
    if client_id is None or len(client_id) <= LONGEST_CLIENT_ID:
        return entity
    return Entity(entity.user, f"sha256:{sha256(client_id.encode(errors='surrogatepass')).hexdigest()}")


class Timed(Awaitable[A]):
    """Awaits `work` and adds the time in which it ran on the event loop, in seconds, by `add`."""

    def __init__(self, work: Awaitable[A], now_s: Callable[[], float], add: Callable[[float], None]) -> None:
        self._work = work
        self._now_s = now_s
        self._add = add

    def __await__(self) -> Generator[Any, Any, A]:
        steps = self._work.__await__()
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            began = self._now_s()
            try:
                waited_for = send()
            except StopIteration as end:
                result: A = end.value
                return result
            finally:
                self._add(self._now_s() - began)
            try:
                value = yield waited_for
            except BaseException as error:  # thrown in by the event loop: a cancellation
                send = _thrower(steps, error)
            else:
                send = _sender(steps, value)


def _thrower(steps: Generator[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)


def _sender(steps: Generator[Any, Any, Any], value: Any) -> Callable[[], Any]:
    return lambda: steps.send(value)
