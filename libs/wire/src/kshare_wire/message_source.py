"""Python source under construction: `message_reading` and `message_writing` compile flat code for a struct's version.

A reader or writer that is one function, with the structs inside it as inlined loops, takes a third of the time of one
that calls a function for each field. The standard library's dataclasses are made in the same way.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

_FILES = count()


class Source:
    """The lines of some functions, and the objects that names in them stand for."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._lines: list[str] = []
        self._names = dict(names)
        self._depth = 0
        self._numbers = count()

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """The lines of the `with` statement are those below `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def local(self, prefix: str) -> str:
        """A name that is used nowhere else in this source."""
        return f"{prefix}_{next(self._numbers)}"

    def constant(self, prefix: str, value: object) -> str:
        """A name that stands for the value."""
        name = self.local(prefix)
        self._names[name] = value
        return name

    def compiled(self, *functions: str) -> list[Callable[..., Any]]:
        """The functions of these names. Tracebacks show their lines, which are kept compressed until then."""
        text = "\n".join(self._lines) + "\n"
        file = f"kshare_wire/messages/{next(_FILES)}"  # linecache loads no lines of a name in angle brackets
        packed = zlib.compress(text.encode())
        linecache.cache[file] = (lambda: zlib.decompress(packed).decode(),)
        exec(compile(text, file, "exec"), self._names)  # the text is made of the message table alone
        return [self._names[name] for name in functions]  # type: ignore[misc]
