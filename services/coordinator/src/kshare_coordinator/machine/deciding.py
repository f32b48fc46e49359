"""The registration of deciders: `@decides(Command)` stands above the function that decides a command.

A decider takes the state, or a context that contains it, and the command. Further parameters are settings, which it
gets by their types, and `now_ms` as the last one, if it needs the time. `load_deciders` imports all modules of the
machine; a command without a decider, or with two, is an error.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_type_hints

from kshare_coordinator import machine
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.commands import Command, Effect
from kshare_coordinator.machine.records import AnyRecord
from kshare_runtime.machine import Decision

AnyDecision = Decision[AnyRecord, Any, Effect]
Decider = Callable[[Any, int], AnyDecision]
"""From a command and the time in milliseconds."""
ADecider = TypeVar("ADecider", bound=Callable[..., Any])

_REGISTERED: dict[type[Command[Any]], Callable[..., AnyDecision]] = {}


def decides(command: type[Command[Any]]) -> Callable[[ADecider], ADecider]:
    """Registers the function below as the decider of a type of commands; ValueError if it has one."""

    def register(function: ADecider) -> ADecider:
        if command in _REGISTERED:
            raise ValueError(
                f"{command.__name__} is decided twice: by {_name(_REGISTERED[command])}, {_name(function)}"
            )
        _REGISTERED[command] = function
        return function

    return register


def load_deciders() -> Mapping[type[Command[Any]], Callable[..., AnyDecision]]:
    """The deciders of all commands; ImportError for a command without one."""
    for module in pkgutil.walk_packages(machine.__path__, f"{machine.__name__}."):
        importlib.import_module(module.name)
    without = [command.__name__ for command in _commands() if command not in _REGISTERED]
    if without:
        raise ImportError(f"no function decides {', '.join(without)}: decorate one with @decides")
    return MappingProxyType(_REGISTERED)


def bound(function: Callable[..., AnyDecision], settings: Mapping[type, object]) -> Decider:
    """A decider with all arguments but the command and the time; TypeError for a parameter that `settings` lacks."""
    parameters = _parameters(function)
    missing = [name for name, kind in parameters.settings if kind not in settings]
    if missing:
        raise TypeError(f"{_name(function)} has parameters of unknown types: {', '.join(missing)}")
    first, *rest = [settings[kind] for _, kind in parameters.settings]
    if parameters.is_timed:
        return lambda command, now_ms: function(first, command, *rest, now_ms)
    return lambda command, now_ms: function(first, command, *rest)


class _Parameters(NamedTuple):
    """What a decider gets beside the command: names and types, and whether it gets the time."""

    settings: tuple[tuple[str, type], ...]
    is_timed: bool


@cache
def _parameters(function: Callable[..., AnyDecision]) -> _Parameters:
    """Cached, because tests make and copy machines often."""
    hints = get_type_hints(function)
    state, _, *others = inspect.signature(function).parameters
    is_timed = others[-1:] == ["now_ms"]
    names = [state, *(others[:-1] if is_timed else others)]
    return _Parameters(tuple((name, hints[name]) for name in names), is_timed)


def _commands() -> Iterator[type[Command[Any]]]:
    """The types of commands, without base classes of others."""
    found = [each for each in vars(commands).values() if isinstance(each, type) and issubclass(each, Command)]
    return (each for each in found if not each.__subclasses__())


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
