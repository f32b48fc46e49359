"""Profiles: the clusters that `kshare --profile NAME` knows by a name, each a property file of Kafka's clients.

~/.config/kshare/profiles/production.properties:
    bootstrap.servers=kafka-1:9092,kafka-2:9092
    security.protocol=sasl_ssl
    …

It is a file for `--command-config` that also has `bootstrap.servers`. One with a password that other users of the
machine may read is refused, as ssh refuses such keys.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

import typer

from kshare.client_properties import BOOTSTRAP_SERVERS, Properties, security_protocol
from kshare.command_options import (
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    COORDINATOR_VARIABLE,
    DATA_DIR_VARIABLE,
    PROFILE_VARIABLE,
)
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Listing, Row, counted, show, stdout_console
from kshare_servicekit.properties import parse_properties

SUFFIX = ".properties"
WITHOUT_A_PROFILE = frozenset(
    {"up", "attach", "demo", "metrics", "audit", "report", "migrate", "backup", "restore", "detach", "profiles"}
)
"""Commands that work on files, start a cluster, or name their clusters by other options."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SECRET = re.compile(r"password|secret|^ssl\.key\.pem$|^sasl\.jaas\.config$|^sasl\.oauthbearer\.config$")
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


class Profile(NamedTuple):
    name: str
    path: Path
    properties: Properties

    @property
    def bootstrap(self) -> str:
        return self.properties[BOOTSTRAP_SERVERS]


def profiles_folder() -> Path:
    return Path(typer.get_app_dir("kshare")) / "profiles"


def profile_names() -> list[str]:
    found = (path.name.removesuffix(SUFFIX) for path in profiles_folder().glob(f"*{SUFFIX}"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def read_profile(name: str) -> Profile:
    """CommandFailed if there is none, if it names no cluster, or if it has secrets that other users may read."""
    path = profiles_folder() / f"{name}{SUFFIX}"
    if not _NAME.fullmatch(name) or not path.is_file():
        known = profile_names()
        others = f"there are {', '.join(known)}" if known else f"write {BOOTSTRAP_SERVERS}=HOST:PORT to {path}"
        raise CommandFailed(f"there is no profile {name} in {profiles_folder()}; {others}", BAD_USE)
    try:
        properties = parse_properties(path.read_text(encoding="utf-8"))
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise CommandFailed(f"profile {path}: {error}", BAD_USE) from None
    secrets = sorted(key for key in properties if _SECRET.search(key))
    if secrets and mode & _OTHER_USERS:
        text = (
            f"profile {path} has {secrets[0]}, and other users may access it ({stat.filemode(mode)}): chmod 600 {path}"
        )
        raise CommandFailed(text, BAD_USE)
    if not properties.get(BOOTSTRAP_SERVERS):
        raise CommandFailed(f"profile {path} has no {BOOTSTRAP_SERVERS}", BAD_USE)
    return Profile(name, path, properties)


def use_profile(name: str) -> None:
    """Sets the variables that name a cluster, as if they had been set to those of the profile; CommandFailed.

    What other clusters' variables said would mix two clusters, so all are set or removed.
    """
    profile = read_profile(name)
    for variable in (COORDINATOR_VARIABLE, DATA_DIR_VARIABLE):
        os.environ.pop(variable, None)
    os.environ[BOOTSTRAP_VARIABLE] = profile.bootstrap
    os.environ[COMMAND_CONFIG_VARIABLE] = str(profile.path)


def show_profiles(*, as_json: bool) -> None:
    rows = [_row(name) for name in profile_names()]
    headings = {
        "profile": "profile",
        "bootstrap": "bootstrap",
        "protocol": "protocol",
        "user": "user",
        "state": "state",
    }
    summary = f"{counted(len(rows), 'profile')} in {profiles_folder()}"
    show(stdout_console(), Listing("profiles", headings, rows, summary), as_json=as_json)


def _row(name: str) -> Row:
    """Without any value that could be a secret."""
    row: dict[str, str | None] = {"profile": name, "bootstrap": None, "protocol": None, "user": None}
    try:
        profile = read_profile(name)
        row["bootstrap"] = profile.bootstrap
        row["protocol"] = security_protocol(profile.properties)
        row["user"] = profile.properties.get("sasl.username")
    except CommandFailed as failure:
        return row | {"state": str(failure)}
    return row | {"state": f"set by {PROFILE_VARIABLE}" if os.environ.get(PROFILE_VARIABLE) == name else "ok"}
