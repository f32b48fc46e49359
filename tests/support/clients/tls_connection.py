"""A TLS connection to a gateway without a Kafka client: the certificate that it shows, and whether it answers."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from types import TracebackType

from cryptography import x509

from support.clients.raw_kafka import framed, header, read_frame

TIMEOUT_S = 10.0
API_VERSIONS = framed(header(18, 0))


class TlsConnection:
    """Connects on entry; ssl.SSLError where the server is not trusted."""

    def __init__(self, port: int, authority: Path, certificate: Path | None = None) -> None:
        """`certificate` is the client's, with its key in one file."""
        context = ssl.create_default_context(cafile=str(authority))
        if certificate is not None:
            context.load_cert_chain(certificate)
        plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        try:
            self._socket = context.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise

    def __enter__(self) -> TlsConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def serial_number(self) -> int:
        """Of the certificate that the server showed."""
        shown = self._socket.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number

    @property
    def version(self) -> str | None:
        return self._socket.version()

    def is_answered(self) -> bool:
        """Whether ApiVersions gets an answer; OSError where the server ended the connection over its certificate."""
        self._socket.sendall(API_VERSIONS)
        return read_frame(self._socket) is not None
