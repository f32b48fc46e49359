"""`kshare attach BOOTSTRAP`: all roles in front of an existing cluster, which keeps the records and kshare's state.

It does what `kshare up` does, in a directory with ports, logs, ready files and certificates of this run. Roles begin
to work when the cluster was examined. Without `--data-dir` the directory is temporary. A later attach, on any machine
and in any directory, goes on where this one ended.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from kshare.command_options import ATTACHED
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.command import UpOptions, load_configs, run_up
from kshare.up.web_console import ConsoleOptions
from kshare_servicekit.existing_cluster import BOOTSTRAP_SERVERS, ENGINE, KAFKA, METADATA_STORE

MODE = "kshare.upstream.mode"
MODES = ("share", "proxy")
PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """The options of the command as the user gave them."""

    bootstrap: str
    config_file: Path | None
    data_dir: Path | None
    """Where commands find the roles of this run; None: a temporary directory."""
    listen: str | None
    advertised: str | None
    ready_file: Path | None
    mode: str | None
    """None: that of the configuration."""
    processes: str
    metrics_listen: str | None
    web_console: ConsoleOptions | None = None


def run_attach(options: AttachOptions) -> bool:
    """Runs until SIGTERM or SIGINT; False at once if kshare cannot work with the cluster. CommandFailed."""
    _check_mode(options)
    with tempfile.TemporaryDirectory(prefix="kshare-attach-") as folder:
        data_dir = Path(folder, "run") if options.data_dir is None else options.data_dir

        async def examine() -> bool:
            # These are loaded while the roles load.
            from kshare.attach.examination import ExaminedCluster, can_work_with
            from kshare.output import stdout_console

            console = stdout_console()
            if not await can_work_with(ExaminedCluster(options.bootstrap, options.config_file), console, is_start=True):
                return False
            console.print(f"logs and ports of this run, for --data-dir of commands: {data_dir}", soft_wrap=True)
            return True

        return run_up(
            UpOptions(
                data_dir=data_dir,
                listen=options.listen,
                advertised=options.advertised,
                ready_file=options.ready_file,
                processes=options.processes,
                config_file=_written_configs(options, Path(folder)),
                user_config_file=options.config_file,
                metrics_listen=options.metrics_listen,
                web_console=options.web_console,
                default_listen=ATTACHED,
            ),
            examine,
        )


def _check_mode(options: AttachOptions) -> None:
    configs, _ = load_configs(options.config_file)
    mode = options.mode or configs.text(MODE)
    if mode not in MODES:
        raise CommandFailed(f"--mode must be {' or '.join(MODES)}, found {mode!r}", BAD_USE)


def _written_configs(options: AttachOptions, folder: Path) -> Path:
    """The file that the roles read: the user's configuration, and after it what attach decides; CommandFailed.

    It is in the temporary folder: a --data-dir may be in use by another attach, and may stay.
    """
    own = {ENGINE: KAFKA, METADATA_STORE: KAFKA, BOOTSTRAP_SERVERS: options.bootstrap}
    if options.mode is not None:
        own[MODE] = options.mode
    given = "" if options.config_file is None else options.config_file.read_text(encoding="utf-8")
    path = folder / "attach.properties"
    try:
        path.touch(mode=PRIVATE)  # it may hold a password
        path.write_text(given + "\n\n" + "".join(f"{name}={value}\n" for name, value in own.items()), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error}") from None
    return path
