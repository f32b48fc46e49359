"""The choice of the engine: Spark for an SQL expression or very many offsets, otherwise this process."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec

from kshare_kafka_client.properties import open_consumer, reader_properties
from kshare_kafka_client.range_reader import RangeReader
from kshare_kafka_client.redrive.direct import redrive_directly
from kshare_kafka_client.redrive.request import Account, BadRequest, RedriveRequest
from kshare_kafka_client.redrive.sources import source_ranges

DIRECT_LIMIT_OFFSETS = 300_000
"""The engine `auto` uses Spark beyond it: Spark takes some 15 s to start, and is then several times as fast."""
NO_SPARK = "the engine spark needs PySpark and Java 17: install kshare-pipeline (docs/quickstart.md)"


class Engine(StrEnum):
    AUTO = "auto"
    DIRECT = "direct"
    SPARK = "spark"


def redrive(request: RedriveRequest, engine: Engine = Engine.AUTO, *, master: str = "local[*]") -> Account:
    """Moves the requested records, or counts them in a dry run; `master` is Spark's master URL.

    BadRequest, RedriveFailed, KafkaUnavailable, InvalidOption.
    """
    check(request, engine)
    if not _needs_spark(request, engine):
        return redrive_directly(request)
    from kshare.redrive.spark import redrive_with_spark
    from kshare_spark.session import spark_session

    spark = spark_session("kshare redrive", master=master, options={"spark.ui.showConsoleProgress": "false"})
    try:
        return redrive_with_spark(request, spark)
    finally:
        spark.stop()


def check(request: RedriveRequest, engine: Engine) -> None:
    """Checks the request without a cluster; BadRequest, InvalidOption."""
    request.check()
    if engine is Engine.DIRECT and request.where is not None:
        raise BadRequest("an SQL expression needs the engine spark")
    if (engine is Engine.SPARK or request.where is not None) and not has_spark():
        raise BadRequest(NO_SPARK)
    open_consumer(reader_properties(request.properties)).close()


def has_spark() -> bool:
    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


def _needs_spark(request: RedriveRequest, engine: Engine) -> bool:
    if engine is not Engine.AUTO or request.where is not None:
        return engine is not Engine.DIRECT
    return has_spark() and _offset_count(request) > DIRECT_LIMIT_OFFSETS


def _offset_count(request: RedriveRequest) -> int:
    with RangeReader(request.properties, timeout_s=request.timeout_s, must_be_whole=False) as reader:
        return sum(one.end_offset - one.first_offset for one in source_ranges(request, reader, Account()))
