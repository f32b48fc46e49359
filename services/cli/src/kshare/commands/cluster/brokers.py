"""`kshare brokers configs | set`: the configs that are altered for all brokers while they run.

They take precedence over the file of `--config` and outlive restarts. The cluster refuses those that cannot be altered;
a name that Kafka does not have is accepted, as in Kafka, with a warning.
"""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from kshare.client_properties import read_properties
from kshare.cluster_metadata import reach
from kshare.command_options import LOCAL, TABLE, AsJson, Bootstrap, CommandConfig, Output, wants_json
from kshare.commands.resource_configs import (
    BROKER,
    alter_configs,
    changes_text,
    check_unset,
    own_configs,
    parse_changes,
)
from kshare.endpoint import Endpoint
from kshare.output import Listing, Row, show, show_outcome, stdout_console
from kshare_core.configs import BROKER_CONFIGS, base_name

ALL_BROKERS = ""
"""The name of the resource whose configs are those of all brokers (`--entity-default` of kafka-configs.sh)."""

brokers_app = typer.Typer(
    name="brokers", no_args_is_help=True, help="Configs of all brokers, altered while they run: configs, set."
)


@brokers_app.command("configs")
def brokers_configs(
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows what was altered for all brokers; the rest is as in the file of --config."""
    found = own_configs(_cluster(bootstrap, command_config), BROKER, [ALL_BROKERS], hidden="(not shown)")[ALL_BROKERS]
    rows: list[Row] = [{"config": name, "value": value} for name, value in sorted(found.items())]
    listing = Listing("configs", {"config": "config", "value": "value"}, rows)
    show(stdout_console(), listing, as_json=wants_json(output, as_json))


@brokers_app.command("set")
def brokers_set(
    configs: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Broker configs.")] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Take an altered value back; repeatable.")
    ] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Alters configs of all brokers, such as log.retention.ms=86400000, without a restart."""
    changes = parse_changes(configs or (), unset or ())
    cluster = _cluster(bootstrap, command_config)
    check_unset(cluster, BROKER, ALL_BROKERS, changes)
    alter_configs(cluster, BROKER, ALL_BROKERS, changes)
    outcome: Row = {"configs": dict(changes)}
    show_outcome(f"{changes_text(changes)} of all brokers", outcome, as_json=wants_json(output, as_json))
    for name in (
        name for name, value in changes.items() if value is not None and base_name(name) not in BROKER_CONFIGS
    ):
        near = difflib.get_close_matches(name, BROKER_CONFIGS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        typer.echo(
            f"kshare: Kafka has no broker config {name}, so its value has no effect; --unset {name} removes it{hint}",
            err=True,
        )


def _cluster(bootstrap: str, command_config: CommandConfig) -> Endpoint:
    properties = read_properties(command_config)
    reach(bootstrap, properties)
    return Endpoint(bootstrap, properties)
