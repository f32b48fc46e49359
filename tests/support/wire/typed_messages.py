"""Typed messages out of nested dicts, and the class of each API's request: for tests that go over all APIs."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kshare_wire.generated import requests
from kshare_wire.generated.message_table import REQUESTS, RESPONSES, STRUCTS
from kshare_wire.messages import Request, Response, Struct


def _request_classes() -> dict[int, type[Request[Any]]]:
    found: dict[int, type[Request[Any]]] = {}
    for module in pkgutil.iter_modules(requests.__path__, f"{requests.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request:
                found[kind.API_KEY] = kind
    return found


ALL_REQUESTS = _request_classes()
"""The class of each API's request, by API key."""


def message_of(kind: type[Request[Any]] | type[Response], fields: Mapping[str, Any]) -> Any:
    """The message of a dict of its fields; inner dicts become the structs that the message table says."""
    inner = _inner_structs(kind.API_KEY, is_request=issubclass(kind, Request))
    structs = vars(sys.modules[kind.__module__])

    def made(name: str, given: Mapping[str, Any]) -> Struct:
        values: dict[str, Any] = {}
        for field, value in given.items():
            below = inner.get((name, field))
            if below is not None and isinstance(value, list | tuple):
                values[field] = [made(below, each) for each in value]
            elif below is not None and isinstance(value, Mapping):
                values[field] = made(below, value)
            else:
                values[field] = value
        built: Struct = structs[name](**values)
        return built

    return made(kind.__name__, fields)


@cache
def _inner_structs(api_key: int, *, is_request: bool) -> dict[tuple[str, str], str]:
    """The struct's name of each field that is a struct or an array of structs, by struct and field."""
    versions = (REQUESTS if is_request else RESPONSES)[api_key].values()
    return {
        (STRUCTS[place][0], field[0]): STRUCTS[field[1]][0]
        for place in _places_below(versions)
        for field in STRUCTS[place][2]
        if isinstance(field[1], int)
    }


def _places_below(places: Iterable[int]) -> set[int]:
    found: set[int] = set()
    left = list(places)
    while left:
        place = left.pop()
        if place not in found:
            found.add(place)
            left += [field[1] for field in STRUCTS[place][2] if isinstance(field[1], int)]
    return found
