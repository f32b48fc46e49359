"""The static page: its files are read at the start, so no request names a path on the disk."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

CONTENT_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
}
INDEX = "index.html"
TEXTS = ("text/", "application/json", "image/svg+xml")


class PageFile(NamedTuple):
    """A file of the page."""

    content_type: str
    charset: str | None
    content: bytes
    etag: str


def page_files() -> dict[str, PageFile]:
    """By path below the root; files of other kinds are left out."""
    found: dict[str, PageFile] = {}
    _collect(files("kshare_console") / "page", "", found)
    if INDEX in found:
        found[""] = found[INDEX]
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, PageFile]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
            continue
        content_type = CONTENT_TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if content_type is None:
            continue
        content = entry.read_bytes()
        charset = "utf-8" if content_type.startswith(TEXTS) else None
        etag = hashlib.sha256(content).hexdigest()[:32]
        found[f"{prefix}{entry.name}"] = PageFile(content_type, charset, content, etag)
