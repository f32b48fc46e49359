"""A headless Chromium for tests: Debian's package chromium-headless-shell, or another Chromium on the PATH.

Where none is there and this runs as root on Debian, it is installed; else Missing says what to do.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from support.environment.installation import alone, debian_program

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
PACKAGE = "chromium-headless-shell"
OPEN_TIMEOUT_S = 60
VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})


def require_chromium() -> str:
    """The path of a Chromium; installs it where it is missing and that is possible."""
    with alone():
        return debian_program(NAMES, PACKAGE)


@dataclass
class Element:
    """An element of a page as Chromium has it after loading it."""

    name: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    own_text: str = ""

    def all(self, name: str, **attributes: str) -> list[Element]:
        """The elements of this name below, in order; `data_chart="x"` is the attribute data-chart."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        found: list[Element] = []
        for child in self.children:
            if child.name == name and wanted.items() <= child.attributes.items():
                found.append(child)
            found += child.all(name, **attributes)
        return found

    def one(self, name: str, **attributes: str) -> Element:
        (found,) = self.all(name, **attributes)
        return found

    @property
    def text(self) -> str:
        return self.own_text + "".join(child.text for child in self.children)


class _Reader(HTMLParser):
    """Chromium's serialization and our own pages are well-formed: each element but the void ones is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].own_text += data


def _run(folder: Path, *arguments: str) -> str:
    command = [require_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder / 'chromium'}", "--host-resolver-rules=MAP * ~NOTFOUND", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=OPEN_TIMEOUT_S, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def opened(page: Path, folder: Path) -> Element:
    """The page's document as Chromium shows it; `folder` is for Chromium's own files."""
    return parsed(_run(folder, "--dump-dom", page.as_uri()))


def parsed(text: str) -> Element:
    """The document of a well-formed page, or a part of one."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.open[0]


def screenshot(page: Path, folder: Path) -> bytes:
    """A PNG of 1200 x 1600 pixels."""
    path = folder / "page.png"
    _run(folder, f"--screenshot={path}", "--window-size=1200,1600", page.as_uri())
    return path.read_bytes()
