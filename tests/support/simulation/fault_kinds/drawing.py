"""What a fault hits and how long it lasts, as a kind of fault draws it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Hosts = Callable[[random.Random, Sequence[str]], tuple[str, ...]]
"""The hosts that a fault hits, of those of the cluster."""
Duration = Callable[[random.Random], float]
"""Seconds."""


def no_host(draw: random.Random, hosts: Sequence[str]) -> tuple[str, ...]:
    """It hits the network, all clients, or etcd."""
    return ()


def one(draw: random.Random, hosts: Sequence[str]) -> tuple[str, ...]:
    return (draw.choice(hosts),)


def pair(draw: random.Random, hosts: Sequence[str]) -> tuple[str, ...]:
    """A link: from the first host to the second."""
    return tuple(draw.sample(hosts, 2))


def several(draw: random.Random, hosts: Sequence[str]) -> tuple[str, ...]:
    """One up to all."""
    return tuple(sorted(draw.sample(hosts, draw.randint(1, len(hosts)))))


def everyone(draw: random.Random, hosts: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(hosts))


def either(probability: float, first: Hosts, second: Hosts) -> Hosts:
    """The first with this probability."""
    return lambda draw, hosts: (first if draw.random() < probability else second)(draw, hosts)


def one_of(*roles: str) -> Hosts:
    """A host of these roles."""
    return lambda draw, hosts: (draw.choice([host for host in hosts if host.rpartition("-")[0] in roles]),)


def at_once(draw: random.Random) -> float:
    """What is done once, or ends by itself."""
    return 0.0


def about(*lengths_s: float) -> Duration:
    """One of these, give or take a half."""
    return lambda draw: draw.choice(lengths_s) * draw.uniform(0.5, 1.5)


def between(least_s: float, most_s: float) -> Duration:
    return lambda draw: draw.uniform(least_s, most_s)
