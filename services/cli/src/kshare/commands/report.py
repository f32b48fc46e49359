"""`kshare report`: writes the pipeline service's marts as one HTML page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kshare.failure import BAD_USE, CommandFailed


def report(
    data_dir: Annotated[Path, typer.Option(help="The data folder of the pipeline service.")],
    output: Annotated[Path, typer.Option(help="The self-contained HTML page.")] = Path("report.html"),
    group: Annotated[list[str] | None, typer.Option(help="Only this share group; repeatable.")] = None,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The first UTC day.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The last UTC day.")] = None,
) -> None:
    """Writes an HTML page with charts about the deliveries of share groups."""
    try:
        from kshare_pipeline.report.command import write_report
        from kshare_pipeline.report.figures import NoMarts
    except ModuleNotFoundError as missing:
        needed = "kshare report needs the history service: install kshare-pipeline (docs/quickstart.md)"
        text = f"{needed}; {missing.name} is not installed"
        raise CommandFailed(text, BAD_USE) from missing
    try:
        write_report(
            data_dir,
            output,
            now=datetime.now(UTC),
            groups=group or [],
            first=since.date() if since else None,
            last=until.date() if until else None,
        )
    except (NoMarts, OSError) as problem:
        raise CommandFailed(str(problem), BAD_USE) from problem
    typer.echo(f"wrote {output}")
