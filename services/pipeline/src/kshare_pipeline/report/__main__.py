"""`python -m kshare_pipeline.report --data-dir DIR --output FILE`: `kshare report` without that command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from kshare_pipeline.report.command import write_report
from kshare_pipeline.report.figures import NoMarts


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 written, 1 not."""
    parser = argparse.ArgumentParser("python -m kshare_pipeline.report", description="The marts as an HTML page.")
    parser.add_argument("--data-dir", type=Path, required=True, help="the pipeline service's folder")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page (default: report.html)")
    parser.add_argument("--group", action="append", default=[], help="only this group; repeatable")
    parser.add_argument("--since", dest="first", type=date.fromisoformat, help="the first day, YYYY-MM-DD")
    parser.add_argument("--until", dest="last", type=date.fromisoformat, help="the last day, YYYY-MM-DD")
    given = parser.parse_args(arguments)
    try:
        write_report(
            given.data_dir,
            given.output,
            now=datetime.now(UTC),
            groups=given.group,
            first=given.first,
            last=given.last,
        )
    except (NoMarts, OSError) as problem:
        sys.stderr.write(f"kshare report: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
