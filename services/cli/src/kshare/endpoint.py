"""One of the clusters that a command on two clusters names by an option."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kshare.addresses import parse_addresses
from kshare.client_properties import Properties, read_properties
from kshare.cluster_metadata import Unreachable
from kshare.kafka_connection import ConnectionFailed

CONFIG_HELP = "A property file for connections to {}, as --command-config of other commands."


class Endpoint(NamedTuple):
    """Bootstrap addresses, `HOST:PORT[,…]`, with the properties of its connections."""

    bootstrap: str
    properties: Properties


def endpoint(option: str, bootstrap: str, config: Path | None) -> Endpoint:
    """The cluster of an option such as `--from`; CommandFailed if the address or the property file is wrong."""
    parse_addresses(bootstrap, what=option)
    return Endpoint(bootstrap, read_properties(config))


@contextmanager
def named_by(*options: str) -> Iterator[None]:
    """Commands on several clusters have no --bootstrap: a cluster that cannot be reached is one of these options'."""
    try:
        yield
    except Unreachable as failure:
        raise ConnectionFailed(f"{failure.problem}; check the address in {' or '.join(options)}") from None
