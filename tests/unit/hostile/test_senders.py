"""What the senders of hostile requests and calls find in servers that answer wrongly, or not at all."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kshare_rpc.exchange.frames import decode_frame, encode_frame
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from support.hostile.corpus import FoundFrames, corpus_frames, corpus_requests
from support.hostile.entrances import Entrance
from support.hostile.kafka_messages import Vocabulary
from support.hostile.requests import Damage, HostileRequest
from support.hostile.rpc_messages import CallSource
from support.hostile.rpc_senders import CallOutcomes, send_to
from support.hostile.senders import Outcomes, Sender

METADATA = 3
VOCABULARY = Vocabulary(topics=("a", "b"), topic_ids=(bytes(16), bytes([1]) * 16))


class WrongServer:
    """Answers each request with the four bytes of its correlation id and one more, over one connection."""

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(length)
                writer.write(struct.pack(">i", 5) + request[4:8] + b"\0")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.has_ended.set()


@pytest.mark.parametrize("damage", [Damage.NONE, Damage.CORPUS], ids=str)
def test_the_form_of_the_answer_to_each_frame_of_the_corpus_is_checked(tmp_path: Path, damage: Damage) -> None:
    """So it is for a changed one; the bug behind a frame of the corpus may be its answer."""
    outcomes = Outcomes(found=FoundFrames(tmp_path / "found"))
    (request,) = [each._replace(damage=damage) for each in corpus_requests() if each.api_key == METADATA]

    async def send(wanted: HostileRequest) -> None:
        wrong = WrongServer()
        server = await asyncio.start_server(wrong.serve, "127.0.0.1", 0)
        async with server:
            await Sender(Entrance(server.sockets[0].getsockname()[1]), outcomes).run_one(wanted)
            await wrong.has_ended.wait()

    asyncio.run(send(request))
    assert "the answer is no Metadata response" in outcomes.problems[0]
    assert outcomes.checked == 1
    assert corpus_frames(outcomes.found.folder) == [request.frame]


HANGS = "Coordinator/ListGroups"


async def _answer_most(frames: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    """An empty answer to each call, except to HANGS and WatchCatalog."""
    hung = 0
    async for frame in frames:
        header, _ = decode_frame(frame)
        if header.method in (HANGS, "Coordinator/WatchCatalog"):
            hung += 1
        else:
            yield encode_frame(FrameHeader(correlation_id=header.correlation_id))
    if hung:
        await asyncio.Event().wait()


def test_a_call_that_hangs_is_found_beside_calls_that_may_wait(tmp_path: Path) -> None:
    outcomes = CallOutcomes(found=FoundFrames(tmp_path / "found"))
    calls = CallSource(random.Random(3), "Coordinator", VOCABULARY, caller="hostile-call-0", damages_frames=False)

    async def send() -> None:
        server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(_answer_most)
        generic = grpc.method_handlers_generic_handler("kshare.v1.Coordinator", {"Exchange": handler})
        server.add_generic_rpc_handlers((generic,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        await send_to(
            address,
            "Coordinator",
            calls,
            "hostile-call-0",
            outcomes,
            lambda: bool(outcomes.problems) and "Coordinator/JoinGroup" in outcomes.by_method,
            answer_bound_s=0.5,
            waiting_s=0.2,
        )
        await server.stop(None)

    asyncio.run(send())
    assert all(problem.endswith(f": {HANGS}") for problem in outcomes.problems)
    assert "WatchCatalog" not in "".join(outcomes.problems)
    assert len(corpus_frames(outcomes.found.folder)) == len(outcomes.problems)
