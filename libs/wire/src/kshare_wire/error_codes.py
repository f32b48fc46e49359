"""The error codes of a response, found for any API, to count the errors that clients get.

Their places come from the definitions of messages, all versions together. A scan is one flat function
(`message_source`); a response is walked only where its API has error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.message_plans import StructPlan, versions_of_response
from kshare_wire.message_source import Source
from kshare_wire.structs import EncodedArray, Response


class _Struct:
    """The error code fields of a struct, and its structs and arrays of structs that have some."""

    def __init__(self) -> None:
        self.codes: dict[str, None] = {}
        self.structs: dict[str, _Struct] = {}
        self.arrays: dict[str, _Struct] = {}

    def add(self, struct_type: StructPlan) -> None:
        """Adds the fields of one version."""
        for field in struct_type.fields:
            if field.struct_type is not None:
                table = self.arrays if field.is_array else self.structs
                below = table.get(field.name) or _Struct()
                below.add(field.struct_type)
                if below.codes or below.structs or below.arrays:
                    table[field.name] = below
            elif field.name.endswith("error_code"):
                self.codes[field.name] = None

    def write_scan(self, source: Source, message: str, *, in_slices: bool) -> None:
        """Writes the lines that append to `found` the codes of the struct in the variable `message`."""
        for name in self.codes:
            source.line(f"if {message}.{name}: found.append(int({message}.{name}))")
        for name, below in self.arrays.items():
            elements, element = source.local("elements"), source.local("element")
            source.line(f"{elements} = {message}.{name} or ()")
            with source.block(f"if {elements}.__class__ is EncodedArray:"):
                source.line(f"found.extend({elements}.error_codes)")
            with source.block("else:"), source.block(f"for {element} in {elements}:"):
                below.write_scan(source, element, in_slices=in_slices)
                if in_slices:
                    source.line("count += 1")
                    with source.block(f"if count >= {SLICE_ELEMENTS}:"):
                        source.line("count = 0")
                        source.line("yield")
        for name, below in self.structs.items():
            inner = source.local("inner")
            source.line(f"{inner} = {message}.{name}")
            with source.block(f"if {inner} is not None:"):
                below.write_scan(source, inner, in_slices=in_slices)


def error_codes(message: Response) -> list[int]:
    """All codes other than NONE in a response, one for each occurrence."""
    found: list[int] = _scan(message.API_KEY, in_slices=False)(message)
    return found


def error_codes_in_slices(message: Response) -> Generator[None, None, list[int]]:
    """As `error_codes`; yields after every SLICE_ELEMENTS elements."""
    found: list[int] = yield from _scan(message.API_KEY, in_slices=True)(message)
    return found


_SCANS: dict[tuple[int, bool], Callable[[Response], Any]] = {}


def _scan(api_key: int, *, in_slices: bool) -> Callable[[Response], Any]:
    found = _SCANS.get((api_key, in_slices))
    if found is None:
        found = _SCANS[api_key, in_slices] = _compiled(api_key, in_slices=in_slices)
    return found


def _compiled(api_key: int, *, in_slices: bool) -> Callable[[Response], Any]:
    whole = _Struct()
    for version in versions_of_response(api_key):
        whole.add(version)
    source = Source({"EncodedArray": EncodedArray})
    with source.block("def scan(message):"):
        source.line("found = []; count = 0")
        whole.write_scan(source, "message", in_slices=in_slices)
        source.line("return found")
        if in_slices:
            source.line("yield")
    (scan,) = source.compiled("scan")
    return scan
