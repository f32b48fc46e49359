"""The certificate with which the console serves HTTPS, read again when its files change, as a mounted Secret's do.

New connections get the new certificate. One that cannot be loaded, such as a key that was written before its
certificate, leaves the former one in place, and is read again at the next change.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

from kshare_servicekit.flags import SettingsError

log = logging.getLogger("kshare_console")


class Certificate:
    """`path` is a PEM file with certificate and key, or a folder with tls.crt and tls.key; SettingsError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            self._stamp = self._read_stamp()
            self._load(self.context)
        except OSError as error:
            raise SettingsError(f"cannot use the certificate {path}: {error}") from None

    def renew(self) -> bool:
        """Loads the certificate after a change; returns whether it did. A failure is logged once per change."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            # Half of a pair that does not match would be in use; so it is tried on another context.
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except OSError as error:
            log.error("the console keeps its former certificate, %s cannot be used: %s", self._path, error)
            return False
        log.info("the console loaded a new certificate for new connections")
        return True

    def _files(self) -> Sequence[Path]:
        return [self._path / "tls.crt", self._path / "tls.key"] if self._path.is_dir() else [self._path]

    def _read_stamp(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in self._files()]
        return [(each.st_mtime_ns, each.st_ino, each.st_size) for each in found]

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, *key = self._files()
        context.load_cert_chain(certificate, key[0] if key else None)
