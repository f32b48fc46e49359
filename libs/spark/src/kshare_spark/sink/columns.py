"""The columns that the sink reads from a frame, as Spark's Kafka sink does; it ignores others.

| column | type | |
|---|---|---|
| `value` | string or binary | required; null makes a tombstone |
| `key` | string or binary | null or missing: no key |
| `headers` | array of struct of `key` string, `value` string or binary | in this order |
| `partition` | int | null or missing: by the key, as the Java producer does |
| `topic` | string | required and not null without the option `topic`, which overrides it |
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from kshare_kafka_client.properties import PREFIX, InvalidOption

NAMES = ("key", "value", "headers", "partition", "topic")
_OPTIONS = ("topic", "includeHeaders", "checkpointLocation", "path", "queryName")
"""`includeHeaders` is accepted as in Spark's sink; the column alone has an effect. The last three are Spark's own."""


class InvalidColumns(ValueError):
    """The frame lacks a column, or a column has a wrong type; the text names it."""


def topic_option(options: Mapping[str, str]) -> str | None:
    """The option `topic`; InvalidOption for unknown options."""
    known = {name.lower(): name for name in _OPTIONS}
    found: str | None = None
    for name, value in options.items():
        if name.lower().startswith(PREFIX):
            continue
        if name.lower() not in known:
            raise InvalidOption(f"unknown option {name!r} of the sink kshare; there are kafka.* and topic")
        if name.lower() == "topic":
            found = value
    if found is not None and not found:
        raise InvalidOption("option topic is empty")
    return found


def check_columns(schema: StructType, topic: str | None) -> None:
    """InvalidColumns unless rows of this schema can be written; `topic` is the option."""
    types = {column.name: column.dataType for column in schema.fields}
    if "value" not in types:
        raise InvalidColumns(f"column value is missing; there are {', '.join(types) or 'none'}")
    if topic is None and "topic" not in types:
        raise InvalidColumns("there is neither an option topic nor a column topic: where should the records go?")
    for name, data_type in types.items():
        if name in NAMES and not _fits(name, data_type):
            raise InvalidColumns(f"column {name} must be {_wanted(name)}, found {data_type.simpleString()}")


def _fits(name: str, data_type: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(data_type, StringType | BinaryType)
    if name == "topic":
        return isinstance(data_type, StringType)
    if name == "partition":
        return isinstance(data_type, IntegerType | ShortType | LongType)
    return _is_headers(data_type)


def _is_headers(data_type: DataType) -> bool:
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields = data_type.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, StringType | BinaryType)
    )


def _wanted(name: str) -> str:
    if name == "headers":
        return "array<struct<key:string,value:binary>>"
    return {"topic": "string", "partition": "int"}.get(name, "string or binary")
