"""The frames that once failed, in files of hexadecimal digits: NAME.hex, and after `#` what went wrong.

A run writes each frame that fails into a folder of its own (`FoundFrames`), which its report names. A file of that
folder that is copied into FOLDER is sent by all later runs, as it is and damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from support.hostile.requests import Damage, HostileRequest, decoded, has_answer

FOLDER = Path(__file__).parent / "corpus"
FOUND_FOLDER = Path("build/hostile-found")
"""Below the folder in which the run was started; `build` is not in git."""
FOUND_LIMIT = 50
LINE_DIGITS = 120


def corpus_frames(folder: Path = FOLDER, names: str = "*.hex") -> list[bytes]:
    """Each frame, in the order of the names; a request's begins with its length."""
    frames = []
    for file in sorted(folder.glob(names)):
        text = "".join(line.partition("#")[0] for line in file.read_text().splitlines())
        frames.append(bytes.fromhex(text))
    return frames


def corpus_requests(folder: Path = FOLDER) -> Iterator[HostileRequest]:
    """Each frame as a request; one that is shorter than a header has the API and version 0."""
    for frame in corpus_frames(folder):
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame.ljust(12, b"\0"), 4)
        request = HostileRequest(api_key, version, correlation_id, Damage.FIELD, frame, is_known=True)
        message = decoded(request)
        if message is None:
            yield request._replace(is_readable=False)
        else:
            yield request._replace(damage=Damage.NONE, has_answer=has_answer(message))


class FoundFrames:
    """Writes failing frames, in the form of the corpus, into a folder that is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def add(self, name: str, frame: bytes, what: str) -> None:
        """`what` went wrong; beyond FOUND_LIMIT frames nothing is written."""
        if self.count >= FOUND_LIMIT:
            return
        self.count += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        digits = frame.hex()
        lines = [digits[start : start + LINE_DIGITS] for start in range(0, len(digits), LINE_DIGITS)]
        comment = " ".join(what.split())
        (self.folder / f"{self.count:02}_{name}.hex").write_text("\n".join([f"# {comment}", *lines, ""]))

    def report(self) -> list[str]:
        """A line that names the folder; none where nothing was found."""
        return [f"frames that failed: {self.count} in {self.folder}"] if self.count else []
