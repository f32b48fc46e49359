"""How much memory idle share-partitions take: .venv/bin/python -m benchmarks.idle_share_partitions (in tests/)."""

from __future__ import annotations

from support.leader.share.idle_share_partitions import measure
from support.leader.share.service import run

GROUPS, PARTITIONS = 100, 100


def main() -> None:
    size = run(lambda: measure(GROUPS, PARTITIONS))
    count = GROUPS * PARTITIONS
    print(f"{count:,} idle share-partitions: {size / 1e6:.1f} MB, {size / count:,.0f} bytes each")


if __name__ == "__main__":
    main()
