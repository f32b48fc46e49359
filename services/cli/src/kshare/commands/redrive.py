"""`kshare redrive`: produces dead letters and archived records to their source topic again, each exactly once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kshare.addresses import parse_addresses
from kshare.client_properties import Properties, read_properties
from kshare.cluster_metadata import reach
from kshare.command_options import LOCAL, Bootstrap, CommandConfig
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.delivery_history import REASON_DELIVERY_COUNT_LIMIT, REASON_REJECTED

if TYPE_CHECKING:
    from kshare_kafka_client.redrive.request import Account, RedriveRequest

Texts = list[str] | None

REASONS = (REASON_REJECTED, REASON_DELIVERY_COUNT_LIMIT)


DeadLetterTopics = Annotated[
    Texts, typer.Argument(metavar="[DEAD_LETTER_TOPIC]...", help="Topics with dead letters (KIP-1191).")
]
Offsets = Annotated[
    Texts, typer.Option(metavar="TOPIC:PARTITION:FIRST-LAST", help="Redrive these records; repeatable.")
]
Archived = Annotated[
    Texts,
    typer.Option(
        metavar="GROUP",
        help="Redrive what this share group archived without dead letters, by the delivery history; repeatable.",
    ),
]
Reasons = Annotated[Texts, typer.Option(help="Only with this reason: rejected, delivery_count_limit; repeatable.")]
Groups = Annotated[Texts, typer.Option(help="Only dead letters of this share group; repeatable.")]
Topics = Annotated[Texts, typer.Option(help="Only records of this source topic; repeatable.")]
Keys = Annotated[Texts, typer.Option(help="Only records with this key; repeatable.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only from this time on, such as 2026-11-21T18:00; UTC by default.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only before this time.")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only records that meet this condition; needs Spark. "
        "Example: delivery_count > 3 AND CAST(value AS STRING) LIKE '%eur%'. "
        "Columns: from_topic, from_partition, from_offset, topic, partition, offset, group_id, reason, "
        "delivery_count, time, key, value, headers.",
    ),
]
Rate = Annotated[float | None, typer.Option(help="At most so many records per second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be moved, and move nothing.")]
EngineName = Annotated[str, typer.Option(help="auto, direct (this process), or spark (millions, --where).")]
Kafka = Annotated[Texts, typer.Option(metavar="NAME=VALUE", help="A config of the Kafka client; repeatable.")]
Master = Annotated[str, typer.Option(help="Spark's master URL.")]


def redrive(
    dead_letter_topics: DeadLetterTopics = None,
    offsets: Offsets = None,
    archived: Archived = None,
    reason: Reasons = None,
    group: Groups = None,
    topic: Topics = None,
    key: Keys = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    engine: EngineName = "auto",
    bootstrap: Bootstrap = LOCAL,
    kafka: Kafka = None,
    command_config: CommandConfig = None,
    master: Master = "local[*]",
) -> None:
    """Produces dead letters and archived records to their source topic again, each once even over repeated runs."""
    _check_reasons(reason or [])
    parse_addresses(bootstrap, what="--bootstrap")
    try:
        from kshare_kafka_client.redrive.request import RedriveRequest, Selection
    except ModuleNotFoundError as missing:
        raise CommandFailed(f"kshare redrive needs the package kshare-pipeline: {missing}", BAD_USE) from missing
    request = RedriveRequest(
        properties=client_properties(bootstrap, kafka or [], read_properties(command_config)),
        dead_letter_topics=tuple(dead_letter_topics or ()),
        offsets=tuple(_offsets(offsets or [])),
        archived_groups=tuple(archived or ()),
        selection=Selection(
            reasons=tuple(reason or ()),
            groups=tuple(group or ()),
            topics=tuple(topic or ()),
            keys=tuple(text.encode() for text in key or ()),
            since_ms=_time_ms("--since", since),
            until_ms=_time_ms("--until", until),
        ),
        where=where,
        rate=rate,
        dry_run=dry_run,
    )
    check_redrive(request, engine)
    reach(bootstrap, read_properties(command_config))
    account = run_redrive(request, engine, master)
    show_account(account, Console(), dry_run=dry_run)
    if account.problem_count:
        raise CommandFailed(f"{account.problem_count} records could not be moved")


def check_redrive(request: RedriveRequest, engine: str) -> None:
    """Checks the request without the cluster; CommandFailed."""
    from kshare.redrive.engine import Engine, check
    from kshare_kafka_client.properties import InvalidOption
    from kshare_kafka_client.redrive.request import BadRequest

    if engine not in list(Engine):
        raise CommandFailed(f"--engine must be one of {', '.join(Engine)}, found {engine!r}", BAD_USE)
    try:
        check(request, Engine(engine))
    except (BadRequest, InvalidOption) as problem:
        raise CommandFailed(str(problem), BAD_USE) from problem


def run_redrive(request: RedriveRequest, engine: str, master: str) -> Account:
    """Runs a checked request; CommandFailed."""
    from kshare.redrive.engine import Engine, redrive
    from kshare_kafka_client.properties import InvalidOption
    from kshare_kafka_client.redrive.request import BadRequest, RedriveFailed
    from kshare_kafka_client.topics import KafkaUnavailable, UnknownTopic

    try:
        return redrive(request, Engine(engine), master=master)
    except (BadRequest, InvalidOption, UnknownTopic) as problem:
        raise CommandFailed(str(problem), BAD_USE) from problem
    except (RedriveFailed, KafkaUnavailable) as problem:
        raise CommandFailed(str(problem)) from problem


def client_properties(bootstrap: str, texts: list[str], given: Properties) -> dict[str, str]:
    """librdkafka's properties: --command-config, overridden by --kafka."""
    found = {"client.id": "kshare-cli", "log_level": "0", **given, "bootstrap.servers": bootstrap}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandFailed("--kafka must be NAME=VALUE, found an entry without a name or without '='", BAD_USE)
        found[name] = value
    return found


def _offsets(texts: list[str]) -> Any:
    from kshare_kafka_client.redrive.request import BadRequest, parse_offsets

    try:
        return [parse_offsets(text) for text in texts]
    except BadRequest as problem:
        raise CommandFailed(f"--offsets: {problem}", BAD_USE) from None


def _check_reasons(reasons: list[str]) -> None:
    """CommandFailed unless each reason is one of REASONS, or a dead letter's full error message (has blanks)."""
    for reason in reasons:
        if reason not in REASONS and " " not in reason:
            raise CommandFailed(
                f"--reason must be {', '.join(REASONS)}, or the full __dlq.errors.message header of a dead letter, "
                f"found {reason!r}",
                BAD_USE,
            )


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(f"{option} must be a time like 2026-11-21T18:00:00, found {text!r}", BAD_USE) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def show_account(account: Account, console: Console, *, dry_run: bool) -> None:
    """Prints counts by source topic and reason, the first records, and records that cannot be moved."""
    word = "would move" if dry_run else "moved"
    if account.moved:
        table = Table("to topic", "reason", word)
        for topic in sorted(account.moved):
            for reason, count in sorted(account.moved[topic].items()):
                table.add_row(topic, Text(reason), str(count))
        console.print(table)
        first_ones = Table("from", "to", "group", "key", "value", title="first records", title_justify="left")
        for one in account.first_ones:
            first_ones.add_row(*(Text(one[name] or "") for name in ("from", "to", "group", "key", "value")))
        console.print(first_ones)
    for text, count in sorted(account.problems.items()):
        console.print(f"cannot move {count} records: {text}", markup=False, highlight=False)
    line = f"{word} {account.moved_count} records; an earlier run moved {account.already_moved}"
    console.print(line, highlight=False, soft_wrap=True)
