"""The flags of the history service. Each may also be a variable KSHARE_<NAME>."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_servicekit.process_settings import HostsAndPorts, ProcessSettings, SettingsError

KAFKA, SPARK = "kafka.", "spark."
DAY_MS = 86_400_000


class PipelineProcessSettings(ProcessSettings):
    """The settings of the process. Its `config` file has lines `kafka.*` (librdkafka's properties, such as
    kafka.security.protocol) and `spark.*` (Spark's, such as spark.driver.memory)."""

    node_id: Annotated[int, Field(ge=0, lt=2**31)] = Field(1, description="For log lines only; one process per folder.")
    data_dir: Path = Field(description="The folder of tables, marts and the checkpoint; made when it is missing.")
    bootstrap_servers: HostsAndPorts = Field(
        description="Gateways of the cluster: host:port, with commas between them."
    )
    history_topic: str = Field(HISTORY_TOPIC, min_length=1, description="The topic of the delivery history.")
    trigger_interval_ms: Annotated[int, Field(ge=1_000, le=DAY_MS)] = Field(
        60_000, description="How long it waits between two looks at the topic."
    )
    marts_interval_ms: Annotated[int, Field(ge=1_000, le=DAY_MS)] = Field(
        300_000, description="How often marts and the report are computed again, where events came."
    )
    max_offsets_per_trigger: Annotated[int, Field(ge=1)] = Field(
        200_000, description="The most records of the topic in one batch, which bounds memory."
    )
    retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        30, description="How many days of events and of broken records are kept."
    )
    marts_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        400, description="How many days of marts are kept."
    )
    report_days: Annotated[int, Field(ge=1, le=400)] = Field(7, description="How many days report.html shows.")

    def source_options(self) -> dict[str, str]:
        """Options of the format kshare-log. Records that retention removed before they were read are skipped: the mart
        `completeness` shows them."""
        kafka = {name: value for name, value in self._properties().items() if name.startswith(KAFKA)}
        return {
            **kafka,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.history_topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
            "failOnDataLoss": "false",
        }

    def spark_options(self) -> dict[str, str]:
        return {name: value for name, value in self._properties().items() if name.startswith(SPARK)}

    def properties(self) -> dict[str, str]:
        """Broker and role configs: none, as the `config` file has client properties."""
        return {}

    def _properties(self) -> dict[str, str]:
        found = super().properties()
        for name in found:
            if not name.startswith((KAFKA, SPARK)):
                raise SettingsError(
                    f"{self.config}: {name} is no config of the pipeline; names begin with kafka. or spark."
                )
        return found
