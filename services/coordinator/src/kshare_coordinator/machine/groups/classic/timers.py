"""Effects of classic groups that the shell runs: timers, and answers to waiting calls.

A timer is identified by its kind and its owner; setting it again moves it. When it expires, the shell passes its
ClassicTimer back in a command. JOIN and SYNC carry the generation in which they were set, so that a late timer does
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


class TimerKind(StrEnum):
    SESSION = "session"
    """A member is silent."""
    INITIAL_JOIN = "initial join"
    """The first rebalance of an empty group waits for more members (group.initial.rebalance.delay.ms)."""
    JOIN = "join"
    """A rebalance waits for members to join again."""
    SYNC = "sync"
    """A new generation waits for members to sync."""
    MEMBER_JOIN = "member join"
    """A member of a consumer group that uses the classic protocol was asked to rejoin."""
    MEMBER_SYNC = "member sync"
    """Such a member joined, and has to sync."""


class ClassicTimer(NamedTuple):
    """`member_id` of SESSION, MEMBER_JOIN and MEMBER_SYNC; `generation_id` of the others."""

    kind: TimerKind
    group_id: str
    member_id: str = ""
    generation_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicTimerSet:
    """`only_if_absent`: a running timer keeps its deadline."""

    timer: ClassicTimer
    delay_ms: int
    only_if_absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicTimerCancelled:
    timer: ClassicTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCallAnswered:
    """The answer of a JoinGroup or SyncGroup that waited."""

    call_id: int
    answer: pb.JoinGroupResponse | pb.SyncGroupResponse


ClassicGroupEffect = ClassicTimerSet | ClassicTimerCancelled | WaitingCallAnswered
