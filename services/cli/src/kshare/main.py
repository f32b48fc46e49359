"""The `kshare` command line: commands about all roles. `commands_on_demand` names the modules of the others.

What a command needs is imported when it runs, since all of it takes longer to import than most commands take.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Protocol, cast

import typer

from kshare.arguments import argument_that_is_not_utf8
from kshare.command_options import (
    ATTACHED,
    LOCAL,
    PROFILE_VARIABLE,
    TABLE,
    WATCH_INTERVAL_S,
    AsJson,
    Bootstrap,
    CommandConfig,
    ConsoleAdmin,
    ConsoleClientConfig,
    ConsoleListen,
    Coordinator,
    DataDir,
    Interval,
    MetricsListen,
    Output,
    Processes,
    SingleProcess,
    Watch,
    wants_json,
)
from kshare.commands_on_demand import CommandsOnDemand
from kshare.failure import BAD_USE, FAILED, INTERRUPTED, CommandFailed
from kshare.up.layout import AUTO, chosen_processes

DEFAULT_ORDERS = 4_000

app = typer.Typer(
    name="kshare",
    cls=CommandsOnDemand,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # subcommands inherit it
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kshare {version('kshare')}")
        raise typer.Exit


def _complete_profile() -> list[str]:
    from kshare.profiles import profile_names

    return profile_names()


@app.callback()
def kshare(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            envvar=PROFILE_VARIABLE,
            autocompletion=_complete_profile,
            help="The cluster of this profile, see `kshare profiles`. --bootstrap and --command-config override it.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Queues over the Kafka protocol: share groups (KIP-932)."""
    if not profile:
        return
    from kshare.profiles import WITHOUT_A_PROFILE, use_profile

    if context.invoked_subcommand not in WITHOUT_A_PROFILE:
        use_profile(profile)
        return
    source = context.get_parameter_source("profile")
    if source is not None and source.name == "COMMANDLINE":
        raise CommandFailed(f"--profile has no effect on kshare {context.invoked_subcommand}: leave it out", BAD_USE)


@app.command()
def profiles(output: Output = TABLE, as_json: AsJson = False) -> None:
    """Lists the profiles: names for clusters, which `kshare --profile NAME` uses. It shows no secrets."""
    from kshare.profiles import show_profiles

    show_profiles(as_json=wants_json(output, as_json))


@app.command()
def up(
    data_dir: Annotated[
        Path, typer.Option(envvar="KSHARE_UP_DATA_DIR", help="The directory for all data; created if it is missing.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Where clients connect; port 0 picks a free one. Default: `listeners` of --config, else {LOCAL}.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="A file that is written with HOST:PORT once clients can connect.")
    ] = None,
    processes: Processes = AUTO,
    single_process: SingleProcess = False,
    config: Annotated[
        Path | None, typer.Option(help="A property file with Kafka's broker configs and kshare.*.")
    ] = None,
    advertised: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address in metadata responses, if not --listen.")
    ] = None,
    metrics_listen: MetricsListen = None,
    console: ConsoleListen = None,
    console_admin: ConsoleAdmin = False,
    console_client_config: ConsoleClientConfig = None,
) -> None:
    """Starts all roles on this machine and keeps them running until Ctrl-C."""
    from kshare.up.command import UpOptions, run_up
    from kshare.up.web_console import console_options

    run_up(
        UpOptions(
            data_dir=data_dir,
            listen=listen,
            advertised=advertised,
            ready_file=ready_file,
            processes=chosen_processes(processes, single_process),
            config_file=config,
            metrics_listen=metrics_listen,
            web_console=console_options(console, console_admin, console_client_config),
        )
    )


@app.command()
def attach(
    bootstrap: Annotated[str, typer.Argument(metavar="BOOTSTRAP", help="HOST:PORT of one or more brokers.")],
    check: Annotated[bool, typer.Option("--check", help="Only examine the cluster.")] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Where clients connect; port 0 picks a free one. Default: `listeners` of --config, else {ATTACHED}.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="A file that is written with HOST:PORT once clients can connect.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="share: share consumers connect to kshare, all other clients to the cluster. proxy: all to kshare."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A property file with kshare.upstream.* (TLS, SASL) and configs of the roles.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="A directory for logs, ports and certificates of this run, where commands with the same --data-dir "
            "find its roles; it has no data. Default: a temporary one."
        ),
    ] = None,
    advertised: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address in metadata responses, if not --listen.")
    ] = None,
    processes: Processes = AUTO,
    single_process: SingleProcess = False,
    metrics_listen: MetricsListen = None,
    console: ConsoleListen = None,
    console_admin: ConsoleAdmin = False,
    console_client_config: ConsoleClientConfig = None,
) -> None:
    """Serves share groups on the topics of an existing Kafka cluster, which keeps all data.

    First it examines the cluster: warnings are printed, and the exit code is 1 if kshare cannot work with it. As a
    test, kshare creates a topic, writes to it and deletes it. Runs until Ctrl-C.
    """
    if check:
        from kshare.attach.examination import ExaminedCluster, check_cluster
        from kshare.output import stdout_console

        can_work = check_cluster(ExaminedCluster(bootstrap, config), stdout_console())
    else:
        from kshare.attach.command import AttachOptions, run_attach
        from kshare.up.web_console import console_options

        options = AttachOptions(
            bootstrap=bootstrap,
            config_file=config,
            data_dir=data_dir,
            listen=listen,
            advertised=advertised,
            ready_file=ready_file,
            mode=mode,
            processes=chosen_processes(processes, single_process),
            metrics_listen=metrics_listen,
            web_console=console_options(console, console_admin, console_client_config),
        )
        can_work = run_attach(options)
    if not can_work:
        raise typer.Exit(1)


@app.command()
def metrics(
    describe: Annotated[
        bool, typer.Option("--describe", help="All metrics with labels and meaning, as a Markdown document.")
    ] = False,
) -> None:
    """Describes the metrics that the roles serve at /metrics."""
    from kshare.commands.metrics import description

    if not describe:
        raise CommandFailed("--describe is missing; a running role serves /metrics (--metrics-listen)", BAD_USE)
    typer.echo(description(), nl=False)


@app.command()
def demo(
    orders: Annotated[int, typer.Option(min=100, max=1_000_000, help="How many orders.")] = DEFAULT_ORDERS,
) -> None:
    """Runs a demo: orders, workers that crash, release and reject, and an account of every order."""
    from rich.console import Console

    from kshare.demo.command import run_demo

    if not run_demo(Console(), orders=orders):
        raise CommandFailed("the demo's account does not add up: an order is missing or was processed twice")


@app.command()
def nodes(
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows all nodes: role, id, epoch, address and lease."""
    from kshare.client_properties import read_properties
    from kshare.commands.nodes import show_nodes
    from kshare.commands.state.coordinator_address import coordinator_address
    from kshare.watch import every, show_watched

    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    is_json = wants_json(output, as_json)
    show_watched(lambda console: show_nodes(address, console, as_json=is_json), every(watch, interval))


class WrongSyntax(Protocol):
    """Typer's exception for options and arguments that a command does not have, or that are missing."""

    exit_code: int
    ctx: typer.Context | None

    def format_message(self) -> str: ...


def _wrong_syntax(error: Exception) -> WrongSyntax | None:
    """The error as one of the command line's syntax; None if it is another one."""
    return cast(WrongSyntax, error) if isinstance(error, _USAGE_ERROR) else None


_USAGE_ERROR = typer.BadParameter.__mro__[1]
"""UsageError of Typer's own copy of click, which has no public name."""


def main() -> None:
    """Runs the command; a failure is one line on stderr and an exit code. Wrong syntax has a second line, the usage."""
    try:
        sys.exit(app(prog_name="kshare", standalone_mode=False) or 0)
    except CommandFailed as failure:
        typer.echo(f"kshare: {failure}", err=True)
        sys.exit(failure.exit_code)
    except typer.Abort as aborted:  # of a question
        typer.echo("kshare: nothing was changed", err=True)
        sys.exit(INTERRUPTED if isinstance(aborted.__context__, KeyboardInterrupt) else FAILED)
    except BrokenPipeError:
        sys.exit(FAILED)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _let_go_of_stdout()
        typer.echo("kshare: the output is incomplete: no space left where stdout goes", err=True)
        sys.exit(FAILED)
    except Exception as error:
        wrong = _wrong_arguments(error)
        if wrong is None:
            raise
        text, exit_code = wrong
        if text:  # empty after the help of a group without a command
            typer.echo(f"kshare: {text}", err=True)
        sys.exit(exit_code)


def _wrong_arguments(error: Exception) -> tuple[str, int] | None:
    """The text and the exit code for arguments that no command can use; None if the error has another cause."""
    if isinstance(error, UnicodeEncodeError):
        argument = argument_that_is_not_utf8(error)
        return None if argument is None else (f"{argument} is not UTF-8", BAD_USE)
    if (wrong := _wrong_syntax(error)) is None:
        return None
    message = wrong.format_message()
    usage = "" if wrong.ctx is None or not message else f"\n{' '.join(wrong.ctx.get_usage().split())}"
    return f"{message}{usage}", wrong.exit_code


def _let_go_of_stdout() -> None:
    """What is still in the buffer would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
