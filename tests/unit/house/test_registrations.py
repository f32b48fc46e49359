"""`make check` finds an RPC without a handler."""

from __future__ import annotations

import pytest

from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import Method
from support.house.registrations import rpcs_without_handler


def test_every_rpc_has_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(rpcs_without_handler()) == []
    forgotten = Method(methods.LEADER, "Forgotten", leader_pb2.ProduceRequest, leader_pb2.ProduceResponse)
    monkeypatch.setattr(methods, "FORGOTTEN", forgotten, raising=False)
    (problem,) = rpcs_without_handler()
    assert problem.startswith("FORGOTTEN: no handler serves Leader/Forgotten")
