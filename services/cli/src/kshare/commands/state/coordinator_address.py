"""Where the coordinators are: told, found in the directory of a `kshare up` on this machine, or asked of a gateway."""

from __future__ import annotations

from pathlib import Path

from kshare.addresses import Address, parse_address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach
from kshare.commands.groups.group_requests import describe_configs
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import COORDINATOR_READY_FILE, RUN

BROKER_RESOURCE = 4
COORDINATOR_ADDRESS = "kshare.coordinator.address"


class CoordinatorAddress(Address):
    """A coordinator's address; any of the `others` may be the active one instead."""

    others: tuple[Address, ...] = ()


def coordinator_address(
    told: str | None,
    data_dir: Path | None,
    bootstrap: str | None = None,
    properties: Properties = NO_PROPERTIES,
) -> CoordinatorAddress:
    """`--coordinator HOST:PORT,…`, else the addresses in the data directory's ready files, else what a gateway says.

    CommandFailed where the place that was given says nothing.
    """
    if told is not None:
        return _of([parse_address(text.strip(), what="--coordinator") for text in told.split(",")])
    if data_dir is not None:
        return _in_data_directory(data_dir)
    if bootstrap is None:
        text = "where is the coordinator? Give --bootstrap, --coordinator HOST:PORT, or the --data-dir of a kshare up"
        raise CommandFailed(text, BAD_USE)
    return _told_by_gateway(bootstrap, properties)


def _told_by_gateway(bootstrap: str, properties: Properties) -> CoordinatorAddress:
    """The gateway's own setting, which it shows to those who ask for it by name."""
    brokers = reach(bootstrap, properties).brokers
    first = parse_address(bootstrap, what="--bootstrap")
    broker = next((each for each in brokers if (each.host, each.port) == first), brokers[0] if brokers else None)
    if broker is None:
        raise CommandFailed(f"the cluster at {bootstrap} names no gateways; give --coordinator HOST:PORT")
    address = str(Address(broker.host, broker.port))
    found = describe_configs(address, BROKER_RESOURCE, str(broker.node_id), [COORDINATOR_ADDRESS], properties)
    text = found.get(COORDINATOR_ADDRESS)
    if not text:
        raise CommandFailed(
            f"{bootstrap} does not say where its coordinator is: is it kshare? Give --coordinator HOST:PORT"
        )
    return _of([parse_address(part.strip(), what=COORDINATOR_ADDRESS) for part in text.split(",")])


def _in_data_directory(data_dir: Path) -> CoordinatorAddress:
    first = data_dir / COORDINATOR_READY_FILE
    others = sorted((data_dir / RUN).glob("coordinator-*.ready"))
    found = [_address_in(ready_file) for ready_file in (first, *others) if ready_file.exists()]
    if not found:
        raise CommandFailed(f"no coordinator runs on {data_dir}: there is no {first}", BAD_USE)
    return _of(found)


def _address_in(ready_file: Path) -> Address:
    try:
        lines = ready_file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandFailed(f"where the coordinator is cannot be read: {error}", BAD_USE) from None
    found = dict(line.partition("=")[::2] for line in lines)
    return parse_address(found.get("address", ""), what=f"address= in {ready_file}")


def _of(addresses: list[Address]) -> CoordinatorAddress:
    address = CoordinatorAddress(*addresses[0])
    address.others = tuple(addresses[1:])
    return address
