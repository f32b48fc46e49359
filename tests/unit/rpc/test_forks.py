"""A process that serves gRPC starts programs by fork and exec, as PySpark starts Java."""

from __future__ import annotations

import os
import subprocess
import sys

STARTS = 300
PROGRAM = f"""
import asyncio, collections, subprocess
import kshare_rpc.grpc_network
import grpc

def starts():
    # With preexec_fn, as in pyspark.java_gateway, Popen calls fork() and runs the handlers of libraries.
    command = ["/bin/true"]
    codes = (subprocess.run(command, preexec_fn=lambda: None).returncode for _ in range({STARTS}))
    return dict(collections.Counter(codes))

async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(await asyncio.get_running_loop().run_in_executor(None, starts))
    await server.stop(0)

asyncio.run(main())
"""


def test_no_program_ends_before_it_began() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == str({0: STARTS}), result.stderr[-2000:]
