"""The Spark formats `kshare` (a share group's records; writing) and `kshare-log` (a topic by plain offsets).

Call `register(spark)` once for each SparkSession. Read options: `share_source.options`; write options: `sink`; options
of the log: `log_source.options`. Spark's workers import this module for every task, so imports that only some formats
need are within functions.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from kshare_spark.share_source.batch_reader import ShareBatchReader
from kshare_spark.share_source.columns import columns
from kshare_spark.share_source.options import InvalidOption, ReadOptions, read_options
from kshare_spark.share_source.stream_reader import ShareStreamReader

_LISTENER_ATTRIBUTE = "_kshare_listener"


class KshareDataSource(DataSource):
    """The format `kshare`."""

    @classmethod
    def name(cls) -> str:
        return "kshare"

    def schema(self) -> StructType:
        return columns(include_headers=read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ShareBatchReader(self._read_options(schema), self.options.get("acquired"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ShareStreamReader(self._read_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kshare_spark.sink.writers import KshareBatchWriter

        return KshareBatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from kshare_spark.sink.writers import KshareStreamWriter

        return KshareStreamWriter(schema, self.options, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = read_options(self.options)
        own = columns(include_headers=options.include_headers)
        if schema != own:
            raise InvalidOption(f"the kshare source has its own columns, {own.simpleString()}; give it no schema")
        return options


def register(spark: SparkSession) -> None:
    """Registers both formats, and the listener that accepts a query's last batch. Idempotent."""
    from kshare_spark.log_source.data_source import LogDataSource
    from kshare_spark.share_source.listener import ShareListener

    spark.dataSource.register(KshareDataSource)
    spark.dataSource.register(LogDataSource)
    if not hasattr(spark, _LISTENER_ATTRIBUTE):
        listener = ShareListener()
        spark.streams.addListener(listener)
        setattr(spark, _LISTENER_ATTRIBUTE, listener)
