"""make test-hostile REQUESTS=1000000 SEED=1: exits 1 where something was found."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from support.environment.memory_folder import memory_folder
from support.hostile.rpc_senders import run_calls
from support.hostile.run import SETTINGS, TOPICS, run_hostile

LATENCY_FACTOR = 2


def main() -> int:
    options = argparse.ArgumentParser(prog="make test-hostile", description=__doc__)
    options.add_argument("--requests", type=int, default=None, help="send at least so many")
    options.add_argument("--seconds", type=float, default=None, help="send for at least so long")
    options.add_argument("--seed", type=int, default=None, help="a fresh one unless given")
    options.add_argument("--rate", type=float, default=None, help="requests a second, at most; without: all it can do")
    options.add_argument("--connections", type=int, default=32)
    options.add_argument(
        "--calm-seconds", type=float, default=60.0, help="how long the good client is measured before and after"
    )
    options.add_argument("--log", type=Path, default=None, help="where to keep the roles' log")
    options.add_argument("--api", type=int, nargs="*", default=[], help="keys of the APIs; all of them unless given")
    options.add_argument("--sasl", action="store_true", help="a SASL listener for half of them, and an authorizer")
    options.add_argument("--call-seconds", type=float, default=10.0, help="of calls between roles, after it")
    given = options.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    if given.requests is None and given.seconds is None:
        given.requests = 100_000
    with memory_folder() as folder:
        found = run_hostile(
            folder,
            seed=seed,
            requests=given.requests,
            seconds=given.seconds,
            calm_s=given.calm_seconds,
            draws_ahead=True,
            calm_after_s=given.calm_seconds,
            connections=given.connections,
            api_keys=given.api,
            is_alone=True,
            requests_per_second=given.rate,
            has_sasl=given.sasl,
        )
    if given.log is not None:
        given.log.write_text(found.log)
    if found.attacked.p99_ms > LATENCY_FACTOR * found.baseline.p99_ms:
        found.problems.append(f"the good client's p99 is more than {LATENCY_FACTOR} times what it was before and after")
    print(found.report(), flush=True)
    if not given.call_seconds:
        return 1 if found.problems else 0
    with memory_folder() as folder:
        calls = run_calls(
            folder,
            SETTINGS,
            seed=seed,
            seconds=given.call_seconds,
            topics=TOPICS,
        )
    print(calls.report())
    return 1 if found.problems or calls.problems else 0


if __name__ == "__main__":
    sys.exit(main())
