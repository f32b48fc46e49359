"""Where the error codes are in a response, whatever its API: for counting what clients are told.

The places come from kio's definitions, all versions together; a response is walked only where its API has codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from kio.index import load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial._introspect import classify_field  # no public way to ask a kio class for its fields' types

from kshare_wire.message_writing import EncodedArray

_Scan = Callable[[Mapping[str, Any], list[int]], None]


class _Struct:
    """The error codes in a struct, and the structs and arrays of structs in it that have some."""

    def __init__(self) -> None:
        self.codes: dict[str, None] = {}
        self.structs: dict[str, _Struct] = {}
        self.arrays: dict[str, _Struct] = {}

    def add(self, struct_type: type) -> None:
        """Adds the fields of one version."""
        for field in fields(struct_type):
            shape: Any = classify_field(field)
            if is_dataclass(shape.type_):
                table = self.arrays if shape.is_array else self.structs
                below = table.get(field.name) or _Struct()
                below.add(cast(type, shape.type_))
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


def error_codes(api_key: int, body: Mapping[str, Any]) -> list[int]:
    """All codes other than NONE in a response's body; a code that many partitions have comes as often."""
    found: list[int] = []
    _scanner(api_key)(body, found)
    return found


@cache
def _scanner(api_key: int) -> _Scan:
    whole = _Struct()
    for version in sorted(schema_name_map[api_key_map[api_key]]):
        whole.add(load_response_schema(api_key, version))
    return whole.compiled()
