"""The span of a sampled request ends, whatever becomes of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kshare_core.tracing import Attributes
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run

JOIN = {"group_id": "group", "session_timeout": 7_000, "rebalance_timeout": 300_000, "protocol_type": "consumer"}


class RecordedSpan:
    traceparent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"

    def __init__(self) -> None:
        self.problems: list[str] = []
        """One for each call of `end`."""

    def add(self, attributes: Attributes) -> None:
        pass

    def link(self, traceparents: Sequence[str]) -> None:
        pass

    def end(self, problem: str = "") -> None:
        self.problems.append(problem)


class EverythingTraced:
    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    def begin(
        self, name: str, attributes: Attributes, *, parent: str = "", links: Sequence[str] = ()
    ) -> RecordedSpan | None:
        self.spans.append(RecordedSpan())
        return self.spans[-1]


def test_the_span_of_a_join_ends_when_its_client_is_gone() -> None:
    tracer = EverythingTraced()

    async def scenario(harness: GatewayHarness) -> None:
        async def joined(request: Any, payload: memoryview) -> Any:
            await asyncio.Event().wait()

        harness.catalog.answers["JoinGroup"] = joined
        client = harness.client()
        client.send(ApiKey.JOIN_GROUP, 3, **JOIN, protocols=[{"name": "range", "metadata": b"\0\1"}])
        await harness.settle()
        (span,) = tracer.spans
        assert span.problems == []
        client.lose()
        await harness.settle()
        assert span.problems == [""], "ended once; that the client is gone is no failure of the request"

    run(scenario, tracer=tracer)
