"""The port to etcd: ranges, transactions, leases and watches, as its v3 API defines them.

Keys are bytes in bytewise order; a range is start <= key < end. Every change of the store has a revision, which all
keys of one transaction share; a key knows the revision that created it and that of its last change.

A call that fails with EtcdUnavailable may still take effect, and even later than the next call. EtcdRefused: it had no
effect and never will have one, and trying the same again does not help.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

REQUEST_BYTES_LIMIT = 1_572_864
"""etcd's --max-request-bytes by default: of a whole request, keys and values and all."""
OPERATIONS_LIMIT = 128
"""etcd's --max-txn-ops by default: of compares, and of operations of either branch."""


class EtcdError(Exception):
    """A call that did not come to its end."""


class EtcdUnavailable(EtcdError):
    """No answer: nobody is there, or it took too long. What was asked may or may not happen."""


class EtcdRefused(EtcdError):
    """etcd's word that it did not and will not do it: too large, no space left, no permission, no such lease."""


class EtcdCompacted(EtcdError):
    """The revision that was asked for is compacted: nobody can see any more what happened since."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """`version` counts the changes since the key was created; `lease` 0: bound to none."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class Target(Enum):
    """What of a key a transaction compares; all are 0 where the key does not exist."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Compare:
    """True where the key's target equals the number."""

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
    """Removes a range, or one key where `end` is None."""

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
    """`found`: where the compares failed, the pairs of the keys to look at, without those that do not exist."""

    succeeded: bool
    revision: int
    found: Sequence[KeyValue]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a watch saw up to `revision`, in the order in which it happened; with none of it, nothing happened."""

    revision: int
    events: Sequence[KeyValue | Removal]


@dataclass(frozen=True, slots=True)
class Removal:
    """A key that was removed, by somebody or because its lease ended."""

    key: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Lease:
    """`ttl_ms`: how long it lives after the last keep-alive; etcd may give more than was asked for."""

    id: int
    ttl_ms: int


class Etcd(Protocol):
    """A client; every method raises EtcdUnavailable or EtcdRefused, and has a time limit of its own."""

    async def range(self, start: bytes, end: bytes | None = None, *, revision: int = 0, limit: int = 0) -> RangeAnswer:
        """Pairs of a range, or of one key where `end` is None; never stale. 0: newest revision, no limit.

        EtcdCompacted where the revision is too old.
        """
        ...

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[Put | Delete],
        otherwise: Sequence[bytes] = (),
    ) -> TransactionAnswer:
        """Does all of `then` at one revision where all compares are true, else looks at the keys of `otherwise`."""
        ...

    async def grant(self, ttl_ms: int) -> Lease:
        """A new lease of at least this time."""
        ...

    async def keep_alive(self, lease: int) -> bool:
        """Lets the lease begin anew; False: there is none, and its keys are gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """Ends the lease and removes its keys; nothing happens where there is none."""
        ...

    def watch(self, start: bytes, end: bytes, from_revision: int) -> AsyncGenerator[Changes, None]:
        """What happens to the range from a revision on, without gaps, until it raises.

        EtcdUnavailable: the connection is lost; go on from the revision after the last one. EtcdCompacted: that
        is not possible any more.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Forgets what was before the revision, but for the newest state of each key."""
        ...

    async def close(self) -> None:
        """Ends watches and connections."""
        ...


def end_of_prefix(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with it."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        raise ValueError("a prefix needs a byte below 255")
    return kept[:-1] + bytes([kept[-1] + 1])


async def read_range(
    etcd: Etcd, start: bytes, end: bytes, *, page: int, revision: int = 0
) -> tuple[list[KeyValue], int]:
    """All pairs of a range as of one revision, read in pages; and that revision. EtcdCompacted: begin again."""
    pairs: list[KeyValue] = []
    while True:
        answer = await etcd.range(start, end, revision=revision, limit=page)
        revision = revision or answer.revision
        pairs.extend(answer.pairs)
        if not answer.more:
            return pairs, revision
        start = answer.pairs[-1].key + b"\x00"
