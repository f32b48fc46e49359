"""The error codes of a response, found for any API, to count the errors that clients get.

Their places come from the definitions of messages, all versions together. A response is walked only where its API has
error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import Any

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.message_plans import StructPlan, versions_of_response
from kshare_wire.message_writing import EncodedArray

_Scan = Callable[[Mapping[str, Any], list[int]], None]
_ScanInSlices = Callable[[Mapping[str, Any], list[int], list[int]], Generator[None, None, None]]
"""A scan in slices; its last argument is a list of one number, the elements of the current slice."""


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

    def compiled(self) -> _Scan:
        codes = tuple(self.codes)
        structs = tuple((name, below.compiled()) for name, below in self.structs.items())
        arrays = tuple((name, below.compiled()) for name, below in self.arrays.items())

        def scan(body: Mapping[str, Any], found: list[int]) -> None:
            for name in codes:
                code = body.get(name)
                if code:
                    found.append(int(code))
            for name, scan_element in arrays:
                elements = body.get(name) or ()
                if isinstance(elements, EncodedArray):
                    found.extend(elements.error_codes)
                    continue
                for element in elements:
                    scan_element(element, found)
            for name, scan_below in structs:
                below = body.get(name)
                if below:
                    scan_below(below, found)

        return scan

    def compiled_in_slices(self) -> _ScanInSlices:
        """As `compiled`, for arrays of any length; structs outside of arrays are scanned at once."""
        rest = _Struct()
        rest.codes, rest.structs = self.codes, self.structs
        scan_rest = rest.compiled()
        arrays = [
            (name, below.compiled_in_slices() if below.arrays else None, below.compiled())
            for name, below in self.arrays.items()
        ]

        def scan(body: Mapping[str, Any], found: list[int], count: list[int]) -> Generator[None, None, None]:
            scan_rest(body, found)
            for name, scan_nested, scan_plain in arrays:
                elements = body.get(name) or ()
                if isinstance(elements, EncodedArray):
                    found.extend(elements.error_codes)
                    continue
                for element in elements:
                    if scan_nested is None:
                        scan_plain(element, found)
                    else:
                        yield from scan_nested(element, found, count)
                    count[0] += 1
                    if count[0] >= SLICE_ELEMENTS:
                        count[0] = 0
                        yield

        return scan


def error_codes(api_key: int, body: Mapping[str, Any]) -> list[int]:
    """All codes other than NONE in a response's body, one for each occurrence."""
    found: list[int] = []
    _scanner(api_key)(body, found)
    return found


def error_codes_in_slices(api_key: int, body: Mapping[str, Any]) -> Generator[None, None, list[int]]:
    """As `error_codes`, in another order; yields after every SLICE_ELEMENTS elements."""
    found: list[int] = []
    yield from _scanner_in_slices(api_key)(body, found, [0])
    return found


@cache
def _scanner(api_key: int) -> _Scan:
    return _whole(api_key).compiled()


@cache
def _scanner_in_slices(api_key: int) -> _ScanInSlices:
    return _whole(api_key).compiled_in_slices()


def _whole(api_key: int) -> _Struct:
    whole = _Struct()
    for version in versions_of_response(api_key):
        whole.add(version)
    return whole
