"""Handlers of RPCs: what `serves` registers, and how errors are returned."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import HEARTBEAT, INIT_PRODUCER_ID
from kshare_rpc.serving import handlers_of, serves


def _without_id(request: pb.InitProducerIdRequest, code: ErrorCode, text: str) -> pb.InitProducerIdResponse:
    return pb.InitProducerIdResponse(error_code=code, error_message=text, producer_id=-1)


class Handlers:
    """Each handler raises what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    @serves(HEARTBEAT)
    async def heartbeat(self, request: pb.HeartbeatRequest, payload: memoryview) -> pb.HeartbeatResponse:
        if self._error is not None:
            raise self._error
        return pb.HeartbeatResponse(error_message=request.group_id)

    @serves(INIT_PRODUCER_ID, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR, refused=_without_id)
    async def begin(self, request: pb.InitProducerIdRequest, payload: memoryview) -> pb.InitProducerIdResponse:
        if self._error is not None:
            raise self._error
        return pb.InitProducerIdResponse()

    async def help(self) -> None:
        """Serves nothing."""


def test_each_method_serves_its_rpc() -> None:
    async def answers() -> None:
        handlers = handlers_of(Handlers())
        assert handlers.keys() == {HEARTBEAT, INIT_PRODUCER_ID}
        answer = await handlers[HEARTBEAT](pb.HeartbeatRequest(group_id="workers"), memoryview(b""))
        assert answer == pb.HeartbeatResponse(error_message="workers")

    asyncio.run(answers())


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (KafkaError(ErrorCode.ILLEGAL_GENERATION, "why"), (ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION)),
        (StorageFailure("why"), (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR)),
    ],
)
def test_errors_are_response_codes(error: Exception, codes: tuple[ErrorCode, ErrorCode]) -> None:
    async def answers() -> None:
        owner = Handlers(error)
        plain = await owner.heartbeat(pb.HeartbeatRequest(), memoryview(b""))
        assert plain == pb.HeartbeatResponse(error_code=codes[0], error_message="why")
        own = await owner.begin(pb.InitProducerIdRequest(), memoryview(b""))
        assert own == pb.InitProducerIdResponse(error_code=codes[1], error_message="why", producer_id=-1)

    asyncio.run(answers())


def test_other_exceptions_are_the_servers() -> None:
    async def answers() -> None:
        with pytest.raises(RuntimeError):
            await Handlers(RuntimeError()).heartbeat(pb.HeartbeatRequest(), memoryview(b""))

    asyncio.run(answers())


def test_an_rpc_has_one_handler() -> None:
    with pytest.raises(ValueError, match=r"Coordinator/Heartbeat has two handlers; one is Handlers\.heartbeat"):
        handlers_of(Handlers(), Handlers())
