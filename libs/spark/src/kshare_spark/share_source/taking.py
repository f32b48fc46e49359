"""A batch of a share group's records as a DataFrame, accepted when a block of code succeeds.

with take(spark, {"kafka.bootstrap.servers": …, "subscribe": "orders", "group.id": "billing"}) as orders:
    orders.write.parquet(…)
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from kshare_spark.share_source.keeper import Keeper
from kshare_spark.share_source.offset import ShareOffset
from kshare_spark.share_source.options import read_options

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def take(spark: SparkSession, options: Mapping[str, str]) -> Iterator[DataFrame]:
    """A DataFrame of the group's available records, at most maxRecordsPerTrigger; `options` are those of a read.

    Within the block the records are locked and their locks renewed; every evaluation reads the same records. They are
    accepted when the block ends, and released when it raises. Needs `kshare_spark.data_source.register(spark)`. Raises
    InvalidOption, ClusterError.
    """
    given = read_options(options)
    keeper = Keeper(given)
    try:
        runs, deadline_ms = keeper.acquire(given.max_records, given.max_bytes)
        acquired = ShareOffset(1, "", deadline_ms, runs)
        yield spark.read.format("kshare").options(**options, acquired=json.dumps(acquired.to_json())).load()
        lost = keeper.finished(runs)
        if lost:
            logger.warning("the locks of %d records were lost within the block; they may come again", lost.records)
    finally:
        keeper.close()
