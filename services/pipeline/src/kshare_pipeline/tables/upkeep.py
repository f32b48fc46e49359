"""The upkeep of tables: removes old days, and joins the small files of many batches."""

from __future__ import annotations

from datetime import date, timedelta

from kshare_pipeline.tables.formats import Table

FILES_LIMIT_TODAY = 32
"""The limit of files in a partition of today, which still grows; files of earlier days are joined into one."""


def keep_up(table: Table, today: date, retention_days: int) -> None:
    """Runs the upkeep; today and the `retention_days` - 1 days before it are kept."""
    table.remove_days(today - timedelta(days=retention_days - 1))
    for day in table.days():
        table.join_files(day, most=FILES_LIMIT_TODAY if day >= today else 1)
