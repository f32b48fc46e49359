"""Where the coordinators are: told, or found in the directory of a `kshare up` on this machine."""

from __future__ import annotations

from pathlib import Path

from kshare.addresses import Address, parse_address
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import COORDINATOR_READY_FILE, RUN


class CoordinatorAddress(Address):
    """A coordinator's address; any of the `others` may be the active one instead."""

    others: tuple[Address, ...] = ()


def coordinator_address(told: str | None, data_dir: Path | None) -> CoordinatorAddress:
    """`--coordinator HOST:PORT,…`, else the addresses in the data directory's ready files; CommandFailed without."""
    if told is not None:
        return _of([parse_address(text.strip(), what="--coordinator") for text in told.split(",")])
    if data_dir is None:
        raise CommandFailed(
            "where is the coordinator? Give --coordinator HOST:PORT (or KSHARE_COORDINATOR), or the --data-dir of a "
            "kshare up on this machine",
            BAD_USE,
        )
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
