"""`kshare audit`: proves the rules of delivery over a stretch of history by Spark, or names what broke them."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kshare.client_properties import read_properties
from kshare.cluster_metadata import reach
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import ConnectionFailed

if TYPE_CHECKING:
    from kshare_pipeline.audit.command import AuditRequest

LIMIT = 10
"""Of deliveries, where nothing says what the groups' limit was: the default of group.share.max.delivery.count.limit."""


def audit(
    tables: Annotated[Path | None, typer.Option(help="The data folder of the pipeline service.")] = None,
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Reads the history topic from this gateway instead.")
    ] = None,
    lines: Annotated[
        Path | None, typer.Option(help="Reads a file instead, with the value of one history record a line.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The first UTC day.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The last UTC day.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only this share group; repeatable.")] = None,
    delivery_count_limit: Annotated[
        int, typer.Option(min=1, help="The highest share.delivery.count.limit that the groups had.")
    ] = LIMIT,
    group_limit: Annotated[
        list[str] | None, typer.Option(metavar="GROUP=LIMIT", help="That of one group; repeatable.")
    ] = None,
    kafka: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A config of the Kafka client; repeatable.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option("--command-config", help="A property file with such configs: security.protocol=ssl and so on."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Writes all findings and the account of each share-partition here, as Parquet.")
    ] = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    spark: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A config of Spark; repeatable.")
    ] = None,
    show: Annotated[int, typer.Option(min=1, help="How many faults and unproven stretches to show.")] = 100,
) -> None:
    """Proves the rules of delivery over a stretch of history; exit code 1 where one was broken, 2 for bad input."""
    if sum(place is not None for place in (tables, bootstrap, lines)) != 1:
        raise CommandFailed("give one of --tables, --bootstrap and --lines: where the history is", BAD_USE)
    try:
        from kshare_pipeline.audit.command import AuditRequest
        from kshare_pipeline.audit.job import DeliveryCountLimits
        from kshare_pipeline.audit.sources import Stretch
    except ModuleNotFoundError as missing:
        text = f"kshare audit needs the package kshare-pipeline with PySpark, and {missing.name} is not installed"
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
    """CommandFailed where a property is wrong, or nothing answers; Spark takes seconds to start and to give up."""
    from kshare_pipeline.kafka.properties import InvalidOption, open_consumer, reader_properties

    try:
        open_consumer(reader_properties({**properties, "bootstrap.servers": bootstrap})).close()
        reach(bootstrap, properties)
    except (InvalidOption, ConnectionFailed) as problem:
        raise CommandFailed(f"the history of {bootstrap} cannot be read: {problem}", BAD_USE) from problem


def run_request(request: AuditRequest) -> None:
    """Audits and prints; raises CommandFailed where rules were broken, or the history cannot be read."""
    from kshare_pipeline.audit.command import run_audit
    from kshare_pipeline.audit.direct import BadHistory

    try:
        is_sound = run_audit(request, typer.echo)
    except BadHistory as problem:
        raise CommandFailed(str(problem), BAD_USE) from problem
    if not is_sound:
        raise CommandFailed("the audit found faults")


def _day(time: datetime | None) -> date | None:
    return None if time is None else time.date()


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, has_value, value = text.partition("=")
        if not name or not has_value:
            raise CommandFailed(f"{option} must be NAME=VALUE, found an entry without a name or without =", BAD_USE)
        found[name] = value
    return found


def _limits(texts: list[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts or ():
        group, _, limit = text.rpartition("=")  # a group's name may have a "="
        if not group or not limit.isdecimal() or int(limit) < 1:
            raise CommandFailed(f"--group-limit {text!r} is not GROUP=LIMIT with a limit of 1 or more", BAD_USE)
        found[group] = int(limit)
    return found
