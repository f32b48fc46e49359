"""Constructors for table rows, one config per line; a row with a text has an effect here.

The module also has the checks of single values in Kafka's validators that go beyond a range or a choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kshare_core.configs.definition import ConfigDefinition, ConfigType, ConfigValue

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_DOUBLE = 1.7976931348623157e308

Check = Callable[[ConfigValue], str | None]


def _number_row(
    type_: ConfigType,
) -> Callable[..., ConfigDefinition]:
    def row(
        name: str,
        default: float | None,
        *,
        low: float | None = None,
        high: float | None = None,
        check: Check | None = None,
        text: str = "",
        broker_synonym: str | None = None,
        dynamic: bool = False,
        internal: bool = False,
    ) -> ConfigDefinition:
        return ConfigDefinition(
            name=name,
            type=type_,
            default=default,
            minimum=low,
            maximum=high,
            check=check,
            documentation=text,
            broker_synonym=broker_synonym,
            has_effect=bool(text),
            read_only=not dynamic,
            is_internal=internal,
        )

    return row


def _text_row(type_: ConfigType) -> Callable[..., ConfigDefinition]:
    def row(
        name: str,
        default: str | bool | tuple[str, ...] | None,
        *,
        choices: tuple[str, ...] = (),
        ignore_case: bool = False,
        check: Check | None = None,
        text: str = "",
        broker_synonym: str | None = None,
        dynamic: bool = False,
        internal: bool = False,
    ) -> ConfigDefinition:
        return ConfigDefinition(
            name=name,
            type=type_,
            default=default,
            choices=choices,
            choices_ignore_case=ignore_case,
            check=check,
            documentation=text,
            broker_synonym=broker_synonym,
            has_effect=bool(text),
            read_only=not dynamic,
            is_internal=internal,
        )

    return row


integer = _number_row(ConfigType.INT)
long = _number_row(ConfigType.LONG)
short = _number_row(ConfigType.SHORT)
double = _number_row(ConfigType.DOUBLE)
boolean = _text_row(ConfigType.BOOLEAN)
string = _text_row(ConfigType.STRING)
listing = _text_row(ConfigType.LIST)
class_name = _text_row(ConfigType.CLASS)
password = _text_row(ConfigType.PASSWORD)


def compression_level_or_default(value: ConfigValue) -> str | None:
    """A check of gzip's level: 1 to 9, or -1 for the codec's default."""
    if isinstance(value, int) and (value == -1 or 1 <= value <= 9):
        return None
    return "Value must be from 1 to 9, or -1"


def empty_problem(value: ConfigValue) -> str | None:
    return "String must be non-empty" if value == "" else None


def empty_list_problem(value: ConfigValue) -> str | None:
    return "List must not be empty" if value == () else None


def throttled_replicas_problem(value: ConfigValue) -> str | None:
    """A check for `*`, or a list of `partition:broker` (DynamicConfig's throttled replica lists)."""
    assert isinstance(value, tuple)
    if value in ((), ("*",)) or all(re.fullmatch(r"[0-9]+:[0-9]+", part) for part in value):
        return None
    return "Must be the literal '*' or a list of [partitionId]:[brokerId]"


_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?[0-9]+)D)?(T(?=[-+0-9])(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)

BY_DURATION = "by_duration:"


def duration_ms(text: str) -> int:
    """The milliseconds of an ISO 8601 duration as Java's Duration.parse reads it; ValueError if it is none."""
    match = _DURATION.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT1H30M")
    sign, days, _, hours, minutes, seconds, fraction = match.groups()
    total = int(days or 0) * 86_400_000 + int(hours or 0) * 3_600_000 + int(minutes or 0) * 60_000
    part_ms = int((fraction or "").ljust(9, "0")) // 1_000_000
    total += int(seconds or 0) * 1000 + (-part_ms if (seconds or "").startswith("-") else part_ms)
    return -total if sign == "-" else total


def auto_offset_reset_problem(value: ConfigValue) -> str | None:
    """A check for `latest`, `earliest`, or `by_duration:` with a non-negative duration (KIP-932)."""
    assert isinstance(value, str)
    if value in ("latest", "earliest"):
        return None
    if value.startswith(BY_DURATION):
        try:
            if duration_ms(value.removeprefix(BY_DURATION)) >= 0:
                return None
        except ValueError as error:
            return str(error)
        return "the duration must not be negative"
    return "must be latest, earliest or by_duration:PnDTnHnMn.nS"
