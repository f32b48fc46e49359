"""`python -m kshare_pipeline`: tables, marts and a report of the delivery history; see `--help`."""

from __future__ import annotations

import sys

from kshare_pipeline.node import PipelineNode
from kshare_pipeline.settings import PipelineProcessSettings
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.process import role_main


def build(environment: Environment, network: Network, settings: PipelineProcessSettings) -> PipelineNode:
    """The service; it calls no other role, and is a client of the gateways."""
    return PipelineNode(environment=environment, settings=settings)


if __name__ == "__main__":
    sys.exit(role_main("pipeline", PipelineProcessSettings, build, is_called=False))
