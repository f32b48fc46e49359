"""The flags of the history service. Each may also be a variable KSHARE_<NAME>."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_servicekit.flags import SettingsError, flag, some_text, whole_number
from kshare_servicekit.process_settings import ProcessSettings, hosts_and_ports, node_number

KAFKA, SPARK = "kafka.", "spark."
DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class PipelineProcessSettings(ProcessSettings):
    """The settings of the process. Its `config` file has lines `kafka.*` (librdkafka's properties, such as
    kafka.security.protocol) and `spark.*` (Spark's, such as spark.driver.memory)."""

    node_id: int = flag("For log lines only; one process per folder.", node_number, default=1)
    data_dir: Path = flag("The folder of tables, marts and the checkpoint; made when it is missing.", Path)
    bootstrap_servers: str = flag("Gateways of the cluster: host:port, with commas between them.", hosts_and_ports)
    history_topic: str = flag("The topic of the delivery history.", some_text, default=HISTORY_TOPIC)
    trigger_interval_ms: int = flag(
        "How long it waits between two looks at the topic.", whole_number(1_000, DAY_MS), default=60_000
    )
    marts_interval_ms: int = flag(
        "How often marts and the report are computed again, where events came.",
        whole_number(1_000, DAY_MS),
        default=300_000,
    )
    max_offsets_per_trigger: int = flag(
        "The most records of the topic in one batch, which bounds memory.", whole_number(1), default=200_000
    )
    retention_days: int = flag(
        "How many days of events and of broken records are kept.", whole_number(1, 36_500), default=30
    )
    marts_retention_days: int = flag("How many days of marts are kept.", whole_number(1, 36_500), default=400)
    report_days: int = flag("How many days report.html shows.", whole_number(1, 400), default=7)

    def source_options(self) -> dict[str, str]:
        """Options of the format kshare-log. Records that retention removed before they were read are skipped: the mart
        `completeness` shows them. A log that became shorter than the checkpoint's offset is read from its start, since
        events that are already in the tables are not added again."""
        kafka = {name: value for name, value in self._properties().items() if name.startswith(KAFKA)}
        return {
            **kafka,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.history_topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
            "failOnDataLoss": "false",
            "offsetReset": "earliest",
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
