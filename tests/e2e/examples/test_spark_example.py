"""The Spark stream of examples/, run as its README says, against the four processes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from support.clients.examples import command_lines, run
from support.kafka.java import require_java

SPARK_LIMIT_S = 300
"""A guard against hanging. One run takes 14 s of CPU, and 57 s with a quarter of a processor; beside two other test
processes, CI's machine once needed more than 120 s."""


def test_spark_stream_copies_each_order_once(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again, it has what came meanwhile and nothing twice."""
    require_java()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # it lives for seconds
    *preparation, produce, start = command_lines("spark-stream")
    for line in preparation:
        run(line, bootstrap)
    output = tmp_path / "orders.parquet"
    for count in (2, 4):
        run(produce, bootstrap)
        printed = run(start, bootstrap, "--bootstrap", bootstrap, "--output", str(output), timeout_s=SPARK_LIMIT_S)
        assert f"{output} has {count} orders" in printed
    rows = parquet.read_table(output).to_pylist()
    assert sorted(row["order"] for row in rows) == ["first order"] * 2 + ["second order"] * 2
    assert {row["delivery_count"] for row in rows} == {1}
    assert len({(row["topic"], row["partition"], row["offset"]) for row in rows}) == 4
