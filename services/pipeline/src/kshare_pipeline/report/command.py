"""The work of `kshare report` and `python -m kshare_pipeline.report`: reads the marts and writes the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

from kshare_pipeline.report.figures import read_figures
from kshare_pipeline.report.page import page
from kshare_pipeline.tables.layout import Layout


def write_report(
    data_dir: Path,
    output: Path,
    *,
    now: datetime,
    groups: Sequence[str] = (),
    first: date | None = None,
    last: date | None = None,
) -> None:
    """Writes the page to `output` atomically; NoMarts without data, OSError if it cannot be written."""
    text = page(read_figures(Layout(data_dir), groups=groups, first=first, last=last), now)
    if output.exists() and not output.is_file():  # such as /dev/stdout
        output.write_text(text, encoding="utf-8")
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(output)
