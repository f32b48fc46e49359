"""The options of `kshare-log`: names and meanings of Spark's Kafka source.

| option | meaning |
|---|---|
| `kafka.*` | properties of librdkafka, `kafka.bootstrap.servers` among them; `kafka.isolation.level`: read_committed |
| `subscribe` | topics, separated by commas |
| `assign` | instead of it: partitions, `{"orders": [0, 1]}` |
| `startingOffsets` | `earliest` (default of a batch), `latest` (of a stream) or `{"orders": {"0": 5}}` (below) |
| `endingOffsets` | batch only, the same words, without earliest; an offset is the one after the last; default latest |
| `maxOffsetsPerTrigger` | the maximum of offsets in one batch of a stream, divided in proportion to the backlogs |
| `minPartitions` | ranges are split into at least so many tasks |
| `includeHeaders` | whether there is a column `headers` |
| `failOnDataLoss` | whether offsets that are no longer in the log are an error (true) or skipped |
| `offsetReset` | with failOnDataLoss=false: `latest` (default) or `earliest`, for a log that became shorter (below) |
| `kafkaConsumer.pollTimeoutMs` | the longest wait of a task that receives nothing; 120000 |

Offsets as JSON name every partition; -2 is earliest and -1 latest, as in Kafka's protocol. A stream may subscribe to a
topic that does not exist yet; once it does, it is read from its first record.

A log that ends before the stream's position was lost, restored from a backup, or belongs to another topic of the same
name. With failOnDataLoss=false the stream continues at the log's end, as with Spark's Kafka source: no record is
repeated, and those that the log has by then are not read. With offsetReset=earliest it continues at the log's start:
all records are read, and those that were read before are repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kshare_kafka_client.properties import PREFIX, InvalidOption, kafka_properties
from kshare_kafka_client.topics import Partition

EARLIEST, LATEST = "earliest", "latest"
EARLIEST_NUMBER, LATEST_NUMBER = -2, -1

_NAMES = (
    "subscribe",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "offsetReset",
    "kafkaConsumer.pollTimeoutMs",
)
_BY_LOWER = {name.lower(): name for name in _NAMES}

StartingOffsets = str | Mapping[Partition, int]
"""EARLIEST, LATEST, or an offset (or EARLIEST_NUMBER, LATEST_NUMBER) for each partition."""


@dataclass(frozen=True, slots=True)
class LogSourceOptions:
    """Parsed options; `properties` are librdkafka's and never printed."""

    properties: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...]
    assigned: tuple[Partition, ...]
    """With `assign` all partitions to read, else empty."""
    starting_offsets: StartingOffsets | None
    ending_offsets: StartingOffsets
    max_offsets_per_trigger: int | None
    min_partitions: int
    include_headers: bool
    fail_on_data_loss: bool
    offset_reset: str
    """EARLIEST or LATEST: where a stream continues in a log that ends before its position."""
    poll_timeout_s: float


def parse_options(given: Mapping[str, str]) -> LogSourceOptions:
    """InvalidOption names the option, the value and what is allowed; option names are case-insensitive."""
    values = dict(_named(given))
    topics, assigned = _topics(values)
    return LogSourceOptions(
        properties=kafka_properties(given),
        topics=topics,
        assigned=assigned,
        starting_offsets=_offsets("startingOffsets", values) if "startingOffsets" in values else None,
        ending_offsets=_ending_offsets(values),
        max_offsets_per_trigger=_positive("maxOffsetsPerTrigger", values),
        min_partitions=_positive("minPartitions", values) or 1,
        include_headers=_boolean("includeHeaders", values, False),
        fail_on_data_loss=_boolean("failOnDataLoss", values, True),
        offset_reset=_offset_reset(values),
        poll_timeout_s=(_positive("kafkaConsumer.pollTimeoutMs", values) or 120_000) / 1000,
    )


def _named(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        if name.lower().startswith(PREFIX):
            continue
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise InvalidOption(f"unknown option {name!r}; there are kafka.* and {', '.join(_NAMES)}")
        yield known, value


def _topics(values: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[Partition, ...]]:
    if ("subscribe" in values) == ("assign" in values):
        raise InvalidOption("give either option subscribe (topics, separated by commas) or assign")
    if "assign" in values:
        assigned = _assigned(values["assign"])
        return tuple(dict.fromkeys(partition.topic for partition in assigned)), assigned
    topics = tuple(dict.fromkeys(name.strip() for name in values["subscribe"].split(",") if name.strip()))
    if not topics:
        raise InvalidOption(f"option subscribe names no topic: {values['subscribe']!r}")
    return topics, ()


def _assigned(text: str) -> tuple[Partition, ...]:
    found: dict[Partition, None] = {}
    for topic, numbers in _json_object("assign", text).items():
        if not isinstance(numbers, list) or not all(_is_whole(number) and number >= 0 for number in numbers):
            raise InvalidOption(f'option assign must be like {{"orders": [0, 1]}}, found {text!r}')
        found.update(dict.fromkeys(Partition(topic, number) for number in numbers))
    if not found:
        raise InvalidOption(f"option assign names no partition: {text!r}")
    return tuple(found)


def _offsets(name: str, values: Mapping[str, str]) -> StartingOffsets:
    text = values[name].strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    found: dict[Partition, int] = {}
    for topic, offsets in _json_object(name, text).items():
        if not isinstance(offsets, dict):
            raise _no_offsets(name, text)
        for number, offset in offsets.items():
            if not (number.isascii() and number.isdigit() and _is_whole(offset) and offset >= EARLIEST_NUMBER):
                raise _no_offsets(name, text)
            found[Partition(topic, int(number))] = offset
    return found


def _no_offsets(name: str, text: str) -> InvalidOption:
    return InvalidOption(
        f'option {name} must be earliest, latest or like {{"orders": {{"0": 23, "1": -2}}}} '
        f"(-2 is earliest, -1 latest), found {text!r}"
    )


def _ending_offsets(values: Mapping[str, str]) -> StartingOffsets:
    if "endingOffsets" not in values:
        return LATEST
    found = _offsets("endingOffsets", values)
    if found == EARLIEST or (not isinstance(found, str) and EARLIEST_NUMBER in found.values()):
        raise InvalidOption("option endingOffsets cannot be earliest: nothing would be read")
    return found


def _offset_reset(values: Mapping[str, str]) -> str:
    found = values.get("offsetReset", LATEST).strip().lower()
    if found not in (EARLIEST, LATEST):
        raise InvalidOption(f"option offsetReset must be earliest or latest, found {values['offsetReset']!r}")
    return found


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"option {name} is no JSON: {error}; found {text!r}") from None
    if not isinstance(found, dict):
        raise InvalidOption(f"option {name} must be a JSON object of topics, found {text!r}")
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _positive(name: str, values: Mapping[str, str]) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidOption(f"option {name} must be a whole number above 0, found {values[name]!r}")
    return int(text)


def _boolean(name: str, values: Mapping[str, str], default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"option {name} must be true or false, found {values[name]!r}")
    return text == "true"
