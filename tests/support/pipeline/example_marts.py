"""Marts of two days as a cluster could have had them, for tests and pictures of the report: made up, not measured.

Group `billing` has outliers, hours without data, members that are uneven, and records that were given up for two
reasons; the other groups are well, and one has a name as long as a phone's line.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as parquet

from kshare_pipeline.tables.layout import Layout

Rows = dict[str, list[dict[str, Any]]]
DAYS = (date(2026, 11, 24), date(2026, 11, 25))
LONG_NAME = "analytics.customer-journey.enrichment.with-scores.version-2"
OUTCOMES = ("accepted", "released", "rejected", "expired", "not_delivered")
FIRST_HOUR, LAST_HOUR = 6, 22
SILENT_HOURS = (12, 13)
STEP_MINUTES = 5
"""The page of two days has a point for each ten minutes, so it looks as one of every minute, and is made in a fifth of
the time."""


def write_example_marts(data_dir: Path) -> None:
    """The files of all marts, as the pipeline's service writes them."""
    for day in DAYS:
        write_marts(data_dir, day, example_rows(day))


def write_marts(data_dir: Path, day: date, rows: Rows) -> None:
    for name, of_mart in rows.items():
        path = Layout(data_dir).mart_file(name, day)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(of_mart), path)


def example_rows(day: date) -> Rows:
    random = Random(day.toordinal())
    rows: Rows = {name: [] for name in ("append_to_accept", "workers", "fairness", "lag", "poison_records")}
    for group, rate, members in (("billing", 900, 5), ("mail", 2500, 2), (LONG_NAME, 40, 1)):
        for number, minute in enumerate(_minutes(day)):
            if group == "billing" and minute.hour in SILENT_HOURS:
                continue
            _minute(rows, random, group, minute, number, rate, members)
    rows["poison_records"] = list(_poison(day, random))
    rows["members"] = [
        {"group": group, "member_id": member_id(group, number), "client_id": f"{group[:9]}-worker-{number}"}
        for group, members in (("billing", 4), ("mail", 2))
        for number in range(members)
    ]
    return rows | _of_day(rows)


def _minutes(day: date) -> Iterator[datetime]:
    begin = datetime(day.year, day.month, day.day, FIRST_HOUR, tzinfo=UTC)
    return (begin + timedelta(minutes=at) for at in range(0, (LAST_HOUR - FIRST_HOUR) * 60, STEP_MINUTES))


def member_id(group: str, number: int) -> str:
    return str(UUID(int=Random(f"{group}{number}").getrandbits(128), version=4))


def _minute(rows: Rows, random: Random, group: str, minute: datetime, number: int, rate: int, members: int) -> None:
    place = {"group": group, "minute": minute}
    is_bad = group == "billing" and number % 80 == 63
    p50 = random.uniform(8, 14) if group != "billing" else random.uniform(40, 90)
    tail = 265_052.0 if is_bad else p50 * random.uniform(4, 9)
    rows["append_to_accept"].append(place | {"p50_ms": p50, "p90_ms": p50 * 2.2, "p99_ms": tail})
    accepted = []
    for member in range(members):
        share = 12 if group == "billing" and member == 0 else 1
        records = int(rate * share / members * random.uniform(0.8, 1.2)) * (30 if is_bad and member == 1 else 1)
        accepted.append(records)
        ended = dict.fromkeys(OUTCOMES, 0) | {"accepted": records, "expired": records // 40 if share > 1 else 0}
        rows["workers"].append(place | {"member_id": member_id(group, member)} | _counts(sum(ended.values()), ended))
    square = sum(records * records for records in accepted)
    even = sum(accepted) ** 2 / (len(accepted) * square) if square else None
    rows["fairness"].append(
        place
        | {"members": members, "fairness": even, "largest_share": max(accepted) / sum(accepted) if square else None}
    )
    waited = 240_000 if is_bad else p50 * random.uniform(1, 3)
    topic = {"topic": "orders", "topic_id": f"id of {group}", "partition": number % 3}
    rows["lag"].append(
        place | topic | {"window_records": random.randrange(rate // 2), "oldest_first_delivery_ms": waited}
    )


def _counts(acquired: int, ended: dict[str, int]) -> dict[str, int]:
    return {"acquired_records": acquired} | {f"{outcome}_records": records for outcome, records in ended.items()}


def _poison(day: date, random: Random) -> Iterator[dict[str, Any]]:
    for at in range(23):
        first = random.randrange(2_000_000)
        reason = "rejected" if at % 3 else "delivery_count_limit"
        place = {"group": "billing", "topic": "orders", "topic_id": "id", "partition": at % 3}
        length = 1 + at % 4
        run = {"first_offset": first, "last_offset": first + length - 1, "records": length}
        when = datetime(day.year, day.month, day.day, 9, at * 2, 7, tzinfo=UTC)
        yield place | run | {"delivery_count": 1 if at % 3 else 5, "reason": reason, "time": when}


def _of_day(rows: Rows) -> Rows:
    """The marts without minutes, from those with them."""
    found: Rows = {name: [] for name in ("append_to_accept_by_day", "redelivery", "completeness")}
    for group in dict.fromkeys(row["group"] for row in rows["workers"]):
        mine = [row for row in rows["workers"] if row["group"] == group]
        accepted, expired = (sum(row[f"{name}_records"] for row in mine) for name in ("accepted", "expired"))
        latency = [row for row in rows["append_to_accept"] if row["group"] == group]
        middle = {f"p{part}_ms": sorted(row[f"p{part}_ms"] for row in latency)[len(latency) // 2] for part in (50, 99)}
        found["append_to_accept_by_day"].append({"group": group} | middle)
        for number, share in ((1, 0.97), (2, 0.02), (3, 0.01)):
            ended = dict.fromkeys(OUTCOMES, 0)
            ended |= {"accepted": int(accepted * share), "expired": int(expired * share)}
            rejected = [row for row in rows["poison_records"] if row["group"] == group and row["reason"] == "rejected"]
            ended["rejected"] = sum(row["records"] for row in rejected if row["delivery_count"] == number)
            place = {"group": group, "topic": "orders", "delivery_count": number}
            found["redelivery"].append(place | _counts(sum(ended.values()), ended))
        missing = 12 if group == LONG_NAME else 0
        found["completeness"].append(
            {"group": group, "topic": "orders", "events": accepted // 50, "missing_events": missing}
        )
    by_reason: dict[str, int] = {}
    for row in rows["poison_records"]:
        by_reason[row["reason"]] = by_reason.get(row["reason"], 0) + row["records"]
    mine = [{"group": "billing", "topic": "orders", "reason": why, "records": n} for why, n in by_reason.items()]
    found["archived"] = [*mine, {"group": "mail", "topic": "mails", "reason": "missing_in_log", "records": 412}]
    found["dead_letters"] = [row | {"dead_letter_topic": "orders.dead"} for row in mine if row["reason"] == "rejected"]
    return found
