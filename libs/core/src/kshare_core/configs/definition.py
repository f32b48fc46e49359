"""Config definitions: the type of one config, its parsing, and a set of values over a table of definitions.

Texts are parsed as Kafka's ConfigDef does: surrounding blanks are dropped, booleans are `true` and `false` in any case,
lists are separated by commas, and numbers have ASCII digits without underscores. Doubles must be finite: NaN would pass
every check of a range.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum

ConfigValue = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """The type of a config, numbered as in DescribeConfigsResponse.ConfigType."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class InvalidConfig(ValueError):
    """An unknown config, or an invalid value; the text names both and what is allowed."""


_INTEGER_RANGES = {
    ConfigType.SHORT: (-(1 << 15), (1 << 15) - 1),
    ConfigType.INT: (-(1 << 31), (1 << 31) - 1),
    ConfigType.LONG: (-(1 << 63), (1 << 63) - 1),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_DOUBLE = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java's String.trim drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config: `minimum` and `maximum` are inclusive; `check` returns the problem with a value, or None."""

    name: str
    type: ConfigType
    default: ConfigValue
    documentation: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    choices_ignore_case: bool = False
    check: Callable[[ConfigValue], str | None] | None = None
    broker_synonym: str | None = None
    """For a topic or group config: the broker config whose value is its default."""
    has_effect: bool = True
    """False: a config of Kafka that kshare accepts and ignores."""
    read_only: bool = True
    """For a broker config: it cannot be altered while the broker runs."""
    is_internal: bool = False
    """Kafka accepts it and does not show it in DescribeConfigs."""

    def parse(self, text: str) -> ConfigValue:
        """The value of a text; InvalidConfig if the text has no valid value."""
        text = text.strip(_BLANKS)
        self._check_spelling(text)
        return self._value(text)

    def parse_stored(self, text: str) -> ConfigValue:
        """The value of a text that is stored already; InvalidConfig if it has none.

        Older versions stored numbers that `parse` refuses (1_000 and NaN), and these keep their value.
        """
        return self._value(text.strip())

    def _check_spelling(self, text: str) -> None:
        if self.type in _INTEGER_RANGES and not _INTEGER.fullmatch(text):
            raise self._wrong(text, f"Not a number of type {self.type.name}")
        if self.type is ConfigType.DOUBLE and not (_DOUBLE.fullmatch(text) and math.isfinite(float(text))):
            raise self._wrong(text, "Not a finite number of type DOUBLE")

    def _value(self, text: str) -> ConfigValue:
        value = self._convert(text)
        self._check_range(value, text)
        problem = self.check(value) if self.check else None
        if problem:
            raise InvalidConfig(f"Invalid value {text} for configuration {self.name}: {problem}")
        return value

    def _convert(self, text: str) -> ConfigValue:
        match self.type:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise self._wrong(text, "Expected value to be either true or false")
                return text.lower() == "true"
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                low, high = _INTEGER_RANGES[self.type]
                try:
                    number = int(text)
                except ValueError:
                    raise self._wrong(text, f"Not a number of type {self.type.name}") from None
                if not low <= number <= high:
                    raise self._wrong(text, f"Not a number of type {self.type.name}")
                return number
            case ConfigType.DOUBLE:
                try:
                    return float(text)
                except ValueError:
                    raise self._wrong(text, "Not a number of type DOUBLE") from None
            case ConfigType.LIST:
                return tuple(part.strip() for part in text.split(",")) if text else ()
            case _:
                return text

    def _check_range(self, value: ConfigValue, text: str) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise self._wrong(text, f"Value must be at least {self.minimum}")
            if self.maximum is not None and value > self.maximum:
                raise self._wrong(text, f"Value must be no more than {self.maximum}")
        if self.choices:
            for part in value if isinstance(value, tuple) else (value,):
                if not self._is_choice(part):
                    raise self._wrong(text, f"String must be one of: {', '.join(self.choices)}")

    def _is_choice(self, part: ConfigValue) -> bool:
        if self.choices_ignore_case:
            return str(part).upper() in {choice.upper() for choice in self.choices}
        return part in self.choices

    def _wrong(self, text: str, why: str) -> InvalidConfig:
        return InvalidConfig(f"Invalid value {text} for configuration {self.name}: {why}")


ConfigTable = Mapping[str, ConfigDefinition]


def find_config(table: ConfigTable, name: str) -> ConfigDefinition:
    """The definition of a name; InvalidConfig names an unknown one, and similar known names."""
    definition = table.get(name)
    if definition is None:
        near = difflib.get_close_matches(name, table, n=3, cutoff=0.75)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InvalidConfig(f"Unknown configuration {name}{hint}")
    return definition


def config_text(value: ConfigValue) -> str | None:
    """The text of a value as Kafka writes it in DescribeConfigs."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _double_text(value)
    return str(value)


def _double_text(value: float) -> str:
    """Java's Double.toString of a value: 0.5, but 1.0E7 from ten million on and 5.0E-4 below a thousandth."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, exponent = f"{Decimal(repr(value)).normalize():E}".split("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


class Configs:
    """Values over a table of definitions: the value that was set, else the inherited one, else the default.

    Immutable, except for `DynamicConfigs`. `inherited` holds values from another level: for topics and groups, those
    set at the broker.
    """

    generation = 0
    """Grows when values change: caches of derived values compare it."""

    def __init__(
        self,
        table: ConfigTable,
        texts: Mapping[str, str] | None = None,
        *,
        inherited: Mapping[str, ConfigValue] | None = None,
        stored: bool = False,
    ) -> None:
        """Parses `texts`; InvalidConfig names the first unknown key, or the first bad value.

        `stored`: the texts are stored already, perhaps by an older version (`ConfigDefinition.parse_stored`).
        """
        self.table = table
        self._inherited = dict(inherited or {})
        self._set: dict[str, ConfigValue] = {}
        for name, text in (texts or {}).items():
            definition = find_config(table, name)
            self._set[name] = definition.parse_stored(text) if stored else definition.parse(text)

    def __getitem__(self, name: str) -> ConfigValue:
        if name in self._set:
            return self._set[name]
        if name in self._inherited:
            return self._inherited[name]
        return self.table[name].default

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def is_set(self, name: str) -> bool:
        return name in self._set

    def with_defaults(self, values: Mapping[str, ConfigValue]) -> Configs:
        """These configs with other values where none is set."""
        return Configs(self.table, self.texts(), inherited={**self._inherited, **values})

    @property
    def inherited(self) -> Mapping[str, ConfigValue]:
        return self._inherited

    def is_inherited(self, name: str) -> bool:
        """Whether the value is inherited: neither set here nor the default."""
        return name in self._inherited and name not in self._set

    def texts(self) -> dict[str, str]:
        """The values that were set, as texts."""
        return {name: config_text(value) or "" for name, value in self._set.items()}

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int) and not isinstance(value, bool), f"{name} is {value!r}, not an integer"
        return value

    def boolean(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), f"{name} is {value!r}, not a boolean"
        return value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), f"{name} is {value!r}, not a text"
        return value

    def number(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, int | float), f"{name} is {value!r}, not a number"
        return float(value)
