"""Limits of connections by address: max.connections.per.ip and its overrides, which may change while a gateway runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from kshare_core.configs import DynamicConfigs, InvalidConfig, process_configs
from kshare_gateway.connections.connections_per_ip import LOOK_UP_RETRY_S, ConnectionsPerIp
from support.gateway.harness import GatewayClient, GatewayHarness, run

LIMIT, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


class Timer:
    """A callback that a test runs."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


NAMES = {"workers.example": ("10.0.0.7", "fd00::7")}


class Limits:
    """The limits of a gateway with these configs; look-ups are run by `resolved`."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.configs = DynamicConfigs(process_configs(texts)[0])
        self.names: dict[str, Sequence[str]] = dict(NAMES)
        self.look_ups: list[Coroutine[Any, Any, None]] = []
        self.timers: list[Timer] = []
        self.limits = ConnectionsPerIp(
            self.configs,
            look_up=self.look_up,
            spawn=lambda work, _: self.look_ups.append(work),
            call_later=self.call_later,
        )
        self.limits.configs_changed()

    def alter(self, texts: dict[str, str]) -> None:
        self.configs.alter(texts, {})
        self.limits.configs_changed()

    async def look_up(self, host: str, port: int) -> Sequence[str]:
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        assert delay_s == LOOK_UP_RETRY_S
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def resolved(self) -> None:
        for work in self.look_ups:
            asyncio.run(work)
        self.look_ups.clear()

    def admitted(self, address: str, most: int = 10) -> int:
        """How many of `most` further connections from an address are admitted."""
        for count in range(most):
            if self.limits.refusal(address) is not None:
                return count
            self.limits.opened(address)
        return most


def test_each_address_has_the_limit_for_itself() -> None:
    limits = Limits({LIMIT: "2"})
    assert [limits.admitted(address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")] == [2, 2, 0]
    limits.limits.closed("10.0.0.1")
    assert limits.admitted("10.0.0.1") == 1
    assert "max.connections.per.ip" in (limits.limits.refusal("10.0.0.1") or "")


def test_connections_in_their_handshake_count() -> None:
    limits = Limits({LIMIT: "2"}).limits
    assert limits.refusal("10.0.0.1", 1) is None
    assert limits.refusal("10.0.0.1", 2) is not None


@pytest.mark.parametrize(
    ("address", "admitted"),
    [("10.0.0.1", 3), ("::ffff:10.0.0.1", 3), ("fd00::1", 4), ("10.0.0.7", 1), ("fd00::7", 1), ("10.0.0.9", 2)],
)
def test_overrides_name_addresses_and_hosts(address: str, admitted: int) -> None:
    limits = Limits({LIMIT: "2", OVERRIDES: "10.0.0.1:3, [fd00:0::1]:4,workers.example:1,gone.example:9"})
    limits.resolved()
    assert limits.admitted(address) == admitted


def test_a_changed_override_has_effect_at_once() -> None:
    limits = Limits({LIMIT: "2"})
    assert limits.admitted("10.0.0.1") == 2
    limits.alter({OVERRIDES: "10.0.0.1:5"})
    assert limits.admitted("10.0.0.1") == 3
    limits.alter({OVERRIDES: "10.0.0.2:5", LIMIT: "0"})
    assert (limits.admitted("10.0.0.1"), limits.admitted("10.0.0.2"), limits.admitted("10.0.0.3")) == (0, 5, 0)


def test_a_look_up_that_fails_is_repeated_until_the_host_is_found(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits({LIMIT: "2", OVERRIDES: "late.example:1,gone.example:9"})
    for _ in range(2):
        limits.resolved()
        (timer,) = limits.timers
        limits.timers.clear()
        timer.callback()
    assert caplog.text.count("has no effect for late.example until it is found") == 1
    limits.names["late.example"] = ("10.0.0.8",)
    limits.resolved()
    assert limits.admitted("10.0.0.8") == 1
    (timer,) = limits.timers
    timer.callback()
    assert len(limits.look_ups) == 1, "only of the host that is not found"
    limits.resolved()
    limits.alter({OVERRIDES: "10.0.0.1:5"})
    assert limits.timers[-1].is_cancelled and not limits.look_ups


def test_a_look_up_that_ends_after_a_change_has_no_effect() -> None:
    limits = Limits({LIMIT: "2", OVERRIDES: "workers.example:1"})
    limits.alter({OVERRIDES: "10.0.0.1:5"})
    limits.resolved()
    assert limits.admitted("10.0.0.7") == 2


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", "10.0.0.1:many", "10.0.0.1:-1", "a b:1", ":1"])
def test_overrides_that_are_malformed_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"max\.connections\.per\.ip\.overrides.*host:count"):
        process_configs({OVERRIDES: text})


def test_0_needs_overrides() -> None:
    with pytest.raises(InvalidConfig, match="can be 0 only if"):
        process_configs({LIMIT: "0"})


def test_a_gateway_closes_what_is_too_many() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        first, second = harness.client(), harness.client()
        assert second.transport.is_closed and not first.transport.is_closed
        await harness.settle()
        first.lose()
        assert not GatewayClient(harness.node).transport.is_closed

    run(scenario, {LIMIT: "1"})
