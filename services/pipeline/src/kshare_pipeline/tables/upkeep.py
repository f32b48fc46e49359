"""Removes days that are too old, and joins the small files that many batches leave."""

from __future__ import annotations

from datetime import date, timedelta

from kshare_pipeline.tables.formats import Table

FILES_LIMIT_TODAY = 32
"""Files of a partition of today, which still gets new ones; those of former days are joined to one."""


def keep_up(table: Table, today: date, retention_days: int) -> None:
    """To be run now and then; today and the `retention_days` - 1 days before it are kept."""
    table.remove_days(today - timedelta(days=retention_days - 1))
    for day in table.days():
        table.join_files(day, most=FILES_LIMIT_TODAY if day >= today else 1)
