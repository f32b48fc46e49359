"""The port to etcd: ranges, transactions, leases and watches, as its v3 API defines them.

Keys are bytes in bytewise order; a range is start <= key < end. Every change of the store has a revision, which all
keys of one transaction share; a key knows the revision that created it and that of its last change.

A call that fails with EtcdUnavailable may still take effect, even after the next call. A call that fails with
EtcdRefused has no effect and never will, and a retry does not help.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

REQUEST_BYTES_LIMIT = 1_572_864
"""etcd's default of --max-request-bytes: the limit of a whole request."""
OPERATIONS_LIMIT = 128
"""etcd's default of --max-txn-ops: the limit of compares, and of operations of either branch."""


class EtcdError(Exception):
    """A failed call."""


class EtcdUnavailable(EtcdError):
    """A call without an answer: etcd is unreachable, or the call timed out. It may or may not take effect."""


class EtcdRefused(EtcdError):
    """A call that etcd refused, without any effect: too large, no space left, no permission, no such lease."""


class EtcdCompacted(EtcdError):
    """The requested revision is compacted: its changes can no longer be read."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value. `version` counts the changes since the key was created; `lease` 0: bound to none."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Target(Enum):
    """The attribute of a key that a transaction compares; all are 0 if the key does not exist."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition: the key's target equals the number."""

    key: bytes
    target: Target
    number: int


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a range, or one key if `end` is None."""

    start: bytes
    end: bytes | None = None


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Pairs in order of keys as they were at `revision`. `more`: the limit left some out."""

    pairs: Sequence[KeyValue]
    revision: int
    more: bool


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """The outcome of a transaction. `found`: if the compares failed, the existing pairs of the keys in `otherwise`."""

    succeeded: bool
    revision: int
    found: Sequence[KeyValue]


@dataclass(frozen=True, slots=True)
class Changes:
    """Events of a watch up to `revision`, in their order; without events, nothing changed."""

    revision: int
    events: Sequence[KeyValue | Removal]


@dataclass(frozen=True, slots=True)
class Removal:
    """A key that was removed, by a client or because its lease ended."""

    key: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. `ttl_ms`: its length after the last keep-alive; etcd may grant more than was requested."""

    id: int
    ttl_ms: int


class Etcd(Protocol):
    """A client; every method raises EtcdUnavailable or EtcdRefused, and has a time limit of its own."""

    async def range(self, start: bytes, end: bytes | None = None, *, revision: int = 0, limit: int = 0) -> RangeAnswer:
        """Pairs of a range, or of one key if `end` is None; never stale. 0: newest revision, no limit.

        EtcdCompacted if the revision is too old.
        """
        ...

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[Put | Delete],
        otherwise: Sequence[bytes] = (),
    ) -> TransactionAnswer:
        """Applies all of `then` at one revision if all compares are true; otherwise reads the keys of `otherwise`."""
        ...

    async def grant(self, ttl_ms: int) -> Lease:
        """A new lease of at least this time."""
        ...

    async def keep_alive(self, lease: int) -> bool:
        """Renews the lease; False: it does not exist, and its keys are gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """Ends the lease and removes its keys; no effect if it does not exist."""
        ...

    def watch(self, start: bytes, end: bytes, from_revision: int) -> AsyncGenerator[Changes, None]:
        """Changes of the range from a revision on, without gaps, until it raises.

        EtcdUnavailable: the connection is lost; continue from the revision after the last one. EtcdCompacted: that
        revision is no longer available.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Drops the history before the revision, except the newest state of each key."""
        ...

    async def close(self) -> None:
        """Ends watches and connections."""
        ...


def end_of_prefix(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        raise ValueError("a prefix needs a byte below 255")
    return kept[:-1] + bytes([kept[-1] + 1])


async def read_range(
    etcd: Etcd, start: bytes, end: bytes, *, page: int, revision: int = 0
) -> tuple[list[KeyValue], int]:
    """All pairs of a range as of one revision, read in pages; and that revision. EtcdCompacted: start again."""
    pairs: list[KeyValue] = []
    while True:
        answer = await etcd.range(start, end, revision=revision, limit=page)
        revision = revision or answer.revision
        pairs.extend(answer.pairs)
        if not answer.more:
            return pairs, revision
        start = answer.pairs[-1].key + b"\x00"
