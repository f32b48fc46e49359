"""The coordinators' addresses: from an option, from the directory of a local `kshare up`, or from a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kshare.addresses import Address, parse_address, parse_addresses
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach
from kshare.commands.groups.group_requests import describe_configs
from kshare.commands.state.role_network import RoleAddress, local_role_address
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import COORDINATOR_READY_FILE, RUN

BROKER_RESOURCE = 4
COORDINATOR_ADDRESS = "kshare.coordinator.address"


class CoordinatorAddress(RoleAddress):
    """The address of one coordinator, with the `others`; any of them may be the active one."""

    others: tuple[Address, ...] = ()


def coordinator_address(
    given: str | None,
    data_dir: Path | None,
    bootstrap: str | None = None,
    properties: Properties = NO_PROPERTIES,
) -> CoordinatorAddress:
    """`--coordinator HOST:PORT,…`, else the addresses in the data directory's ready files, else a gateway's config.

    CommandFailed if the source that was given has no address.
    """
    if given is not None:
        return _of([parse_address(text.strip(), what="--coordinator") for text in given.split(",")])
    if data_dir is not None:
        return _in_data_directory(data_dir)
    if bootstrap is None:
        text = "the coordinator's address is missing: give --bootstrap, --coordinator HOST:PORT, or --data-dir"
        raise CommandFailed(text, BAD_USE)
    return _read_from_gateway(bootstrap, properties)


def _read_from_gateway(bootstrap: str, properties: Properties) -> CoordinatorAddress:
    """The gateway's config `kshare.coordinator.address`, which DescribeConfigs returns only if requested by name."""
    brokers = reach(bootstrap, properties).brokers
    given = parse_addresses(bootstrap, what="--bootstrap")
    broker = next((each for each in brokers if (each.host, each.port) in given), brokers[0] if brokers else None)
    if broker is None:
        raise CommandFailed(f"the cluster at {bootstrap} has no brokers; give --coordinator HOST:PORT")
    address = str(Address(broker.host, broker.port))
    found = describe_configs(address, BROKER_RESOURCE, str(broker.node_id), [COORDINATOR_ADDRESS], properties)
    text = found.get(COORDINATOR_ADDRESS)
    if not text:
        raise CommandFailed(
            f"{bootstrap} has no config {COORDINATOR_ADDRESS}, so it may not be kshare; give --coordinator HOST:PORT"
        )
    return _of([parse_address(part.strip(), what=COORDINATOR_ADDRESS) for part in text.split(",")])


def _in_data_directory(data_dir: Path) -> CoordinatorAddress:
    first = data_dir / COORDINATOR_READY_FILE
    others = sorted((data_dir / RUN).glob("coordinator-*.ready"))
    ready_files = [ready_file for ready_file in (first, *others) if ready_file.exists()]
    found = [local_role_address(_address_in(ready_file), data_dir) for ready_file in ready_files]
    if not found:
        raise CommandFailed(f"no coordinator runs on {data_dir}: {first} does not exist", BAD_USE)
    return _of(found)


def _address_in(ready_file: Path) -> Address:
    try:
        lines = ready_file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandFailed(f"cannot read the coordinator's address from {ready_file}: {error}", BAD_USE) from None
    found = dict(line.partition("=")[::2] for line in lines)
    return parse_address(found.get("address", ""), what=f"address= in {ready_file}")


def _of(addresses: Sequence[Address]) -> CoordinatorAddress:
    first = addresses[0]
    address = CoordinatorAddress(*first)
    address.config_file = first.config_file if isinstance(first, RoleAddress) else None
    address.others = tuple(addresses[1:])
    return address
