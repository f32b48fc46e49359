"""What the console says at its start about who can reach it."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from kshare_console.node import ConsoleNode
from kshare_console.settings import ConsoleProcessSettings
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_runtime.clock import SystemClock
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment
from kshare_servicekit.flags import SettingsError
from support.environment.certificates import Authority

EVERYWHERE = "0.0.0.0:8080"
IN_CLEAR_TEXT, READABLE = "passwords and session cookies cross the network unencrypted", "users do not sign in"


def warnings_of(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    listen: str,
    *,
    needs_sign_in: bool,
    is_https: bool = False,
    is_admin: bool = False,
) -> list[str]:
    clients = folder / "clients.properties"
    clients.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n" if needs_sign_in else "")
    certificate = Authority("kshare").issue("localhost").write_combined(folder / "console.pem")
    settings = ConsoleProcessSettings(
        bootstrap_servers="127.0.0.1:9092",
        coordinator_address="127.0.0.1:9093",
        console_listen=listen,
        console_admin=is_admin,
        console_certificate=certificate if is_https else None,
        client_config=clients,
    )
    environment = Environment(clock=SystemClock(), random=random.Random(1), open_store=MemoryDisk().open_store)
    with caplog.at_level(logging.WARNING, "kshare_console"):
        ConsoleNode(environment=environment, network=InProcessNetwork(), settings=settings)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("listen", "needs_sign_in", "is_https", "warning"),
    [
        (EVERYWHERE, True, False, IN_CLEAR_TEXT),
        ("[::]:8080", True, False, IN_CLEAR_TEXT),
        (EVERYWHERE, True, True, None),
        ("127.0.0.1:8080", True, False, None),
        ("localhost:8080", True, False, None),
        (EVERYWHERE, False, False, READABLE),
        (EVERYWHERE, False, True, READABLE),
        ("[::1]:8080", False, False, None),
    ],
)
def test_a_console_that_is_reached_from_elsewhere_warns(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    listen: str,
    needs_sign_in: bool,
    is_https: bool,
    warning: str | None,
) -> None:
    found = warnings_of(tmp_path, caplog, listen, needs_sign_in=needs_sign_in, is_https=is_https)
    assert len(found) == (warning is not None), found
    assert all(warning is not None and warning in each for each in found)


def test_changes_without_sign_in_are_for_this_machine_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SettingsError, match="Give --client-config"):
        warnings_of(tmp_path, caplog, EVERYWHERE, needs_sign_in=False, is_admin=True)
