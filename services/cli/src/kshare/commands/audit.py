"""`kshare audit`: verifies the delivery rules over a stretch of delivery history with Spark, and lists violations."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kshare.client_properties import read_properties
from kshare.cluster_metadata import reach
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import ConnectionFailed
from kshare_core.whole_numbers import LARGEST_INT, whole_number

if TYPE_CHECKING:
    from kshare.audit.command import AuditRequest

LIMIT = 10
"""The default delivery count limit: the default of group.share.max.delivery.count.limit."""


def audit(
    tables: Annotated[Path | None, typer.Option(help="The data folder of the pipeline service.")] = None,
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Read the history topic from this gateway instead.")
    ] = None,
    lines: Annotated[
        Path | None, typer.Option(help="Read a file instead, with the value of one history record per line.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The first UTC day.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The last UTC day.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only this share group; repeatable.")] = None,
    delivery_count_limit: Annotated[
        int, typer.Option(min=1, help="The highest share.delivery.count.limit of all groups.")
    ] = LIMIT,
    group_limit: Annotated[
        list[str] | None, typer.Option(metavar="GROUP=LIMIT", help="The highest limit of one group; repeatable.")
    ] = None,
    kafka: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A config of the Kafka client; repeatable.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config", help="A property file with Kafka client configs, such as security.protocol=ssl."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write all findings and the counts of each share-partition to this directory, as Parquet."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master URL.")] = "local[*]",
    spark: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A Spark config; repeatable.")] = None,
    show: Annotated[int, typer.Option(min=1, help="The most violations and unverified stretches to show.")] = 100,
) -> None:
    """Verifies the delivery rules over a stretch of history; exit code 1 for a violation, 2 for bad input."""
    if sum(place is not None for place in (tables, bootstrap, lines)) != 1:
        raise CommandFailed("give exactly one of --tables, --bootstrap and --lines as the history's source", BAD_USE)
    try:
        from kshare.audit.command import AuditRequest
        from kshare.audit.job import DeliveryCountLimits
        from kshare.audit.sources import Stretch
    except ModuleNotFoundError as missing:
        needed = "kshare audit needs PySpark and Java 17: install kshare-pipeline (docs/quickstart.md)"
        text = f"{needed}; {missing.name} is not installed"
        raise CommandFailed(text, BAD_USE) from missing
    properties = {"log_level": "0", **read_properties(command_config), **_pairs("--kafka", kafka)}
    if bootstrap is not None:
        check_cluster(bootstrap, properties)
    run_request(
        AuditRequest(
            tables=tables,
            lines=lines,
            bootstrap=bootstrap,
            kafka_properties=properties,
            stretch=Stretch(_day(since), _day(until), tuple(group or ())),
            limits=DeliveryCountLimits(delivery_count_limit, _limits(group_limit)),
            output=output,
            master=master,
            spark_options=_pairs("--spark", spark),
            show=show,
        )
    )


def check_cluster(bootstrap: str, properties: dict[str, str]) -> None:
    """CommandFailed if a property is wrong or the cluster does not respond: checked first, as Spark takes seconds."""
    from kshare_kafka_client.properties import InvalidOption, open_consumer, reader_properties

    try:
        open_consumer(reader_properties({**properties, "bootstrap.servers": bootstrap})).close()
        reach(bootstrap, properties)
    except (InvalidOption, ConnectionFailed) as problem:
        raise CommandFailed(f"cannot read the history from {bootstrap}: {problem}", BAD_USE) from problem


def run_request(request: AuditRequest) -> None:
    """Runs the audit and prints the result; CommandFailed for violations, or if the history cannot be read."""
    from kshare.audit.command import run_audit
    from kshare.audit.direct import BadHistory

    try:
        is_sound = run_audit(request, typer.echo)
    except BadHistory as problem:
        raise CommandFailed(str(problem), BAD_USE) from problem
    if not is_sound:
        raise CommandFailed("the audit found violations of the delivery rules")


def _day(time: datetime | None) -> date | None:
    return None if time is None else time.date()


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, has_value, value = text.partition("=")
        if not name or not has_value:
            raise CommandFailed(f"{option} must be NAME=VALUE, found an entry without a name or without '='", BAD_USE)
        found[name] = value
    return found


def _limits(texts: list[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts or ():
        group, _, limit = text.rpartition("=")  # a group id may contain "="
        number = whole_number(limit, LARGEST_INT)
        if not group or not number:
            raise CommandFailed(
                f"--group-limit must be GROUP=LIMIT with a limit of at least 1, found {text!r}", BAD_USE
            )
        found[group] = number
    return found
