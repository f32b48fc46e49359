"""The examination of `kshare attach BOOTSTRAP`: what a cluster can do for kshare, and what is missing, in words."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kshare.addresses import parse_address
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.configs import PROCESS_CONFIGS, Configs, InvalidConfig
from kshare_servicekit.existing_cluster import TOPIC_PREFIX, state_topic_of
from kshare_servicekit.properties import parse_properties
from kshare_servicekit.tls.to_upstream import PROTOCOL, client_settings
from kshare_upstream.cluster import BrokersUnknown, Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings, ConnectionLost
from kshare_upstream.doctor.examination import Examination, examine
from kshare_upstream.doctor.findings import Diagnosis, Finding, Severity
from kshare_upstream.own_topics import metadata_topic
from kshare_upstream.sasl import AuthenticationFailed
from kshare_upstream.topics import Replicas

STYLES = {Severity.OK: "green", Severity.NOTE: "blue", Severity.WARNING: "yellow", Severity.REFUSAL: "red"}
NEEDS_CREDENTIALS = f"; if this listener asks for TLS or SASL, set {PROTOCOL} in a file for --config"
BAD_NEWS = (Severity.WARNING, Severity.REFUSAL)
WIDTH = max(map(len, Severity))
STARTING_BROKERS_S, RETRY_S = 30.0, 0.1
"""How long, and how often, brokers that do not know the cluster yet are asked."""


@dataclass(frozen=True, slots=True)
class ExaminedCluster:
    """The options that an examination needs."""

    bootstrap: str
    config_file: Path | None


def check_cluster(options: ExaminedCluster, console: Console) -> bool:
    """As `can_work_with`, for `--check`."""
    return asyncio.run(can_work_with(options, console))


async def can_work_with(options: ExaminedCluster, console: Console, *, is_start: bool = False) -> bool:
    """Examines the cluster, prints the findings, and returns whether kshare can work with it; CommandFailed.

    `is_start`: only warnings and refusals are printed, and a cluster in which kshare worked before has no trial.
    """
    bootstrap = [BrokerAddress(*parse_address(each, what="BOOTSTRAP")) for each in options.bootstrap.split(",")]
    configs = attach_configs(options.config_file)
    try:
        settings = client_settings(configs)
    except InvalidConfig as error:
        raise CommandFailed(f"configuration {options.config_file}: {error}", BAD_USE) from None
    prefix = configs.text(TOPIC_PREFIX)
    own_topics = [state_topic_of(configs).name, metadata_topic(prefix).name]
    examination = Examination(
        bootstrap=options.bootstrap,
        prefix=prefix,
        suffix=secrets.token_hex(4),
        now_ms=lambda: time.monotonic() * 1000,
        wall_clock_ms=time.time_ns() // 1_000_000,
        has_history=configs.boolean("kshare.delivery.history.enable"),
        topics_of_earlier_work=own_topics if is_start else (),
        own_topics=own_topics,
        replicas=Replicas.of(configs),
    )
    try:
        diagnosis = await _examined(bootstrap, settings, examination)
    except BrokersUnknown as error:
        raise CommandFailed(str(error)) from None
    except (ConnectionLost, AuthenticationFailed) as error:
        raise CommandFailed(f"{error}{'' if configs.is_set(PROTOCOL) else NEEDS_CREDENTIALS}") from None
    shown = [each for each in diagnosis.findings if not is_start or each.severity in BAD_NEWS]
    _show(shown, console)
    if diagnosis.is_refused or not is_start:
        _show_result(diagnosis, options.bootstrap, console)
    return not diagnosis.is_refused


def attach_configs(path: Path | None) -> Configs:
    """The values of the configuration file; CommandFailed names the file."""
    try:
        texts = {} if path is None else parse_properties(path.read_text(encoding="utf-8"))
        return Configs(PROCESS_CONFIGS, texts)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"configuration {path}: {error}", BAD_USE) from None


async def _examined(bootstrap: list[BrokerAddress], settings: ClientSettings, examination: Examination) -> Diagnosis:
    cluster = Cluster(bootstrap, settings)
    try:
        await _brokers_known(cluster)
        return await examine(cluster, examination)
    finally:
        await cluster.close()


async def _brokers_known(cluster: Cluster) -> None:
    """Waits while the brokers have just started; BrokersUnknown."""
    deadline_s = time.monotonic() + STARTING_BROKERS_S
    while True:
        try:
            await cluster.describe([])
            return
        except BrokersUnknown:
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(RETRY_S)


def _show(findings: Sequence[Finding], console: Console) -> None:
    """A line for each finding, with the command that changes it on a line of its own, which is never wrapped."""
    for finding in findings:
        severity = Text(f"{finding.severity:<{WIDTH}}  ", style=STYLES[finding.severity])
        console.print(severity + Text(finding.text), soft_wrap=True)
        if finding.command:
            console.print(Text(" " * (WIDTH + 2) + finding.command, style="bold"), soft_wrap=True)


def _show_result(diagnosis: Diagnosis, bootstrap: str, console: Console) -> None:
    refusals, warnings = len(diagnosis.of(Severity.REFUSAL)), len(diagnosis.of(Severity.WARNING))
    if refusals:
        console.print(f"kshare cannot work with {bootstrap}: {_number(refusals, 'refusal')}", soft_wrap=True)
    else:
        found = _number(warnings, "warning") if warnings else "nothing is missing"
        console.print(f"kshare can work with {bootstrap}: {found}", soft_wrap=True)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
