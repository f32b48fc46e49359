"""`python -m kshare_console`: the web console in its own process; `--help` names the flags."""

from __future__ import annotations

import sys

from kshare_console.node import ConsoleNode
from kshare_console.settings import ConsoleProcessSettings
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process import role_main


def build(environment: Environment, network: Network, settings: ConsoleProcessSettings) -> ConsoleNode:
    """The service, which calls coordinators and leaders, and is a client of the gateways."""
    if settings.coordinator_address is None:
        raise SettingsError("--coordinator-address (or KSHARE_COORDINATOR_ADDRESS) is missing")
    return ConsoleNode(environment=environment, network=network, settings=settings)


if __name__ == "__main__":
    sys.exit(role_main("console", ConsoleProcessSettings, build, is_called=False))
