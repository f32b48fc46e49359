"""What each speed trick is worth: the same work with it and without it, in processes of their own, in turn.

Prints medians of five rounds. A trick that is worth nothing any more should go.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from kshare_fastpath.memory import collect_garbage_rarely, keep_large_buffers
from kshare_fastpath.prompt_future import PromptFuture
from kshare_fastpath.scheduling import ask_for_short_slices
from kshare_fastpath.switches import TRICKS, VARIABLE
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Service

ROUNDS = 5
BUFFERS = 3_000
BUSY = "while True: pass"


async def prompt_future() -> float:
    """µs until the listener of a Future has run, while the event loop has a hundred other things to do in a turn."""
    loop = asyncio.get_running_loop()
    waits = []
    for _ in range(2_000):
        for _ in range(100):
            loop.call_soon(_nothing)
        future: PromptFuture[None] = PromptFuture(loop=loop)
        heard: asyncio.Future[float] = loop.create_future()
        future.listen(lambda _, heard=heard: heard.set_result(time.perf_counter()))  # type: ignore[misc]
        began = time.perf_counter()
        future.set_result(None)
        waits.append(await heard - began)
    return statistics.median(waits) * 1e6


async def large_buffers() -> float:
    """µs to make, fill and drop a buffer of up to a megabyte, a few of which are held at a time."""
    keep_large_buffers()
    sizes = random.Random(1)
    content = bytes(1 << 20)
    kept: list[bytearray] = []
    began = 0.0
    for number in range(BUFFERS + 200):
        if number == 200:
            began = time.perf_counter()
        kept.append(bytearray(content[: sizes.randrange(300_000, 1 << 20)]))
        if len(kept) > 8:
            kept.pop(sizes.randrange(8))
        if number % 64 == 63:
            kept.clear()
    return (time.perf_counter() - began) / BUFFERS * 1e6


async def rare_garbage_collections() -> float:
    """ms to make 200,000 objects that live on."""
    kept: list[Any] = [{"number": number} for number in range(200_000)]
    gc.collect()
    collect_garbage_rarely()
    began = time.perf_counter()
    kept += [[{"number": number}] for number in range(200_000)]
    return (time.perf_counter() - began) * 1e3


async def http2_frames() -> float:
    """µs of a small call between two roles."""

    async def answer(request: leader_pb2.FetchRequest, _: memoryview) -> leader_pb2.FetchResponse:
        return leader_pb2.FetchResponse()

    server = await GrpcNetwork().serve("127.0.0.1:0", [Service("Leader", {FETCH: answer})])
    channel = GrpcNetwork().connect(server.address)
    for _ in range(200):
        await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000)
    began = time.perf_counter()
    for _ in range(2_000):
        await channel.call(FETCH, leader_pb2.FetchRequest(), timeout_ms=10_000)
    found = (time.perf_counter() - began) / 2_000 * 1e6
    await channel.close()
    await server.stop(0)
    return found


def _nothing() -> None:
    sum(range(200))


async def short_slices() -> float:
    """µs of a message to another process and its answer, beside processes that keep every processor busy."""
    return await asyncio.to_thread(_round_trips_beside_busy_processes)


def _round_trips_beside_busy_processes() -> float:
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range((os.cpu_count() or 1) + 1)]
    ask_for_short_slices()
    there, here = socket.socketpair()
    echo = os.fork()
    if not echo:
        here.close()
        while message := there.recv(1):
            there.send(message)
        os._exit(0)
    there.close()
    try:
        waits = []
        for _ in range(1_000):
            time.sleep(0.002)
            began = time.perf_counter()
            here.send(b".")
            here.recv(1)
            waits.append(time.perf_counter() - began)
    finally:
        here.close()
        os.waitpid(echo, 0)
        for process in busy:
            process.kill()
            process.wait()
    return statistics.mean(waits) * 1e6


MEASURES: dict[str, Callable[[], Awaitable[float]]] = {
    "prompt_future": prompt_future,
    "large_buffers": large_buffers,
    "rare_garbage_collections": rare_garbage_collections,
    "http2_frames": http2_frames,
    "short_slices": short_slices,
}
assert MEASURES.keys() == set(TRICKS), "each trick has a measure"


def in_a_process_of_its_own(trick: str, *, is_on: bool) -> float:
    environment = {**os.environ, VARIABLE: "" if is_on else trick}
    command = [sys.executable, "-m", "benchmarks.fastpath", trick]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def measured(trick: str) -> float:
    import uvloop  # as the roles run

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def work() -> float:
            return await MEASURES[trick]()

        return runner.run(work())


def main() -> None:
    if len(sys.argv) > 1:
        print(measured(sys.argv[1]))
        return
    print("| trick | measured | on | off | off / on |\n|---|---|---|---|---|")
    for trick, measure in MEASURES.items():
        with_it, without = [], []
        for _ in range(ROUNDS):
            with_it.append(in_a_process_of_its_own(trick, is_on=True))
            without.append(in_a_process_of_its_own(trick, is_on=False))
        on, off = statistics.median(with_it), statistics.median(without)
        what = (measure.__doc__ or "").rstrip(".")
        print(f"| {trick} | {what} | {on:.1f} | {off:.1f} | {off / on:.2f} |", flush=True)


if __name__ == "__main__":
    main()
