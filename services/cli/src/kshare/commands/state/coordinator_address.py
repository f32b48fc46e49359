"""Where the coordinator is: told, or found in the directory of a `kshare up` on this machine."""

from __future__ import annotations

from pathlib import Path

from kshare.addresses import Address, parse_address
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import COORDINATOR_READY_FILE


def coordinator_address(told: str | None, data_dir: Path | None) -> Address:
    """`--coordinator HOST:PORT`, else the address in the data directory's ready file; CommandFailed without either."""
    if told is not None:
        return parse_address(told, what="--coordinator")
    if data_dir is None:
        raise CommandFailed(
            "where is the coordinator? Give --coordinator HOST:PORT (or KSHARE_COORDINATOR), or the --data-dir of a "
            "kshare up on this machine",
            BAD_USE,
        )
    ready_file = data_dir / COORDINATOR_READY_FILE
    try:
        lines = ready_file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandFailed(
            f"no coordinator process runs on {data_dir}: {error} (kshare up --single-process has none to connect to)",
            BAD_USE,
        ) from None
    found = dict(line.partition("=")[::2] for line in lines)
    return parse_address(found.get("address", ""), what=f"address= in {ready_file}")
