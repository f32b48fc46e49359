"""Every API and every RPC has a handler that says so, every command of the coordinator a decider: part of `make check`.

.venv/bin/python tests/support/house/registrations.py
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

from kshare_rpc.generated import methods
from kshare_rpc.network import Method
from kshare_rpc.serving import registered

ROLES = ("kshare_coordinator", "kshare_share_coordinator", "kshare_leader")


def load(package: str) -> None:
    """Imports all modules of a package, but for those that run it."""
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def rpcs_without_handler() -> Iterator[str]:
    for package in ROLES:
        load(package)
    served = registered()
    for name, method in vars(methods).items():
        if isinstance(method, Method) and method not in served:
            yield f"{name}: no handler serves {method.path}; decorate one with kshare_rpc.serving.serves or answers"


def main() -> int:
    importlib.import_module("kshare_gateway.dispatch")  # fails for a module of handlers that registers no API
    importlib.import_module("kshare_coordinator.machine.machine")  # fails for a command without a decider
    problems = list(rpcs_without_handler())
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
