"""The console's certificate is renewed without a restart, and an unusable one leaves the former in use."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from kshare_console.http.certificate import Certificate
from kshare_servicekit.flags import SettingsError
from support.environment.certificates import Authority


@pytest.mark.parametrize("is_folder", [False, True])
def test_new_connections_get_a_renewed_certificate(tmp_path: Path, is_folder: bool) -> None:
    authority, path = Authority("kshare"), tmp_path / "console"
    first, second = authority.issue("localhost"), authority.issue("localhost")

    async def served(port: int) -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=10)

    async def test() -> None:
        write = first.write_directory if is_folder else first.write_combined
        certificate = Certificate(write(path))
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert await served(port) == first.certificate_pem
            assert not certificate.renew()
            key_file = path / "tls.key" if is_folder else path
            key_file.write_text(second.key_pem() if is_folder else first.certificate_pem + second.key_pem())
            assert not certificate.renew()
            assert await served(port) == first.certificate_pem
            (second.write_directory if is_folder else second.write_combined)(path)
            assert certificate.renew()
            assert await served(port) == second.certificate_pem

    asyncio.run(test())


def test_one_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot use the certificate"):
        Certificate(tmp_path / "none.pem")
