"""The `kshare` command against a running cluster: its output, its errors, its demo."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from support.clients.raw_kafka import batch_with_header, produce_raw
from support.clusters.kshare_cluster import KshareCluster

KSHARE = str(Path(sys.executable).parent / "kshare")
LIMIT_S = 120.0

SETTINGS = {"group.share.min.heartbeat.interval.ms": "500", "group.share.heartbeat.interval.ms": "500"}


def kshare(
    *arguments: str, stdin: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KSHARE, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def succeed(*arguments: str, stdin: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    done = kshare(*arguments, stdin=stdin, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(output: str) -> list[list[str]]:
    """The lines of `kshare consume` after the heading: partition, offset, delivery count, key, value."""
    return [line.split("\t") for line in output.splitlines()[1:]]


@pytest.mark.parametrize("single_process", [False, True], ids=["processes", "single-process"])
def test_topics_produce_consume_and_groups(tmp_path: Path, single_process: bool) -> None:
    with KshareCluster(tmp_path, SETTINGS, single_process=single_process) as cluster:
        where = ("--bootstrap", cluster.bootstrap)
        succeed("topics", "create", "orders", "--partitions", "2", "--config", "max.message.bytes=5000", *where)
        assert re.search(r"orders\W+2\b", succeed("topics", "list", *where))
        refused = kshare("topics", "create", "orders", *where)
        assert refused.returncode == 1 and "TOPIC_ALREADY_EXISTS" in refused.stderr
        assert refused.stderr.count("\n") == 1

        consume = ("consume", "orders", "--group", "g", "--timeout", "30", *where)
        with subprocess.Popen(
            [KSHARE, *consume, "--release", "--max", "1"], stdout=subprocess.PIPE, text=True
        ) as first:
            _wait_for_member(cluster, "g")
            succeed("produce", "orders", "first", "second", "--key", "k", *where)
            succeed("produce", "orders", *where, stdin="third\n")
            (released,) = rows(first.communicate(timeout=LIMIT_S)[0])
        assert released[2] == "1"

        taken = {row[4]: row for row in rows(succeed(*consume, "--accept", "--max", "3"))}
        assert sorted(taken) == ["first", "second", "third"]
        assert [taken[value][3] for value in ("first", "second", "third")] == ["k", "k", ""]
        again = taken[released[4]]
        assert again[:2] == released[:2] and int(again[2]) >= 2
        assert rows(succeed("consume", "orders", "--group", "g", "--timeout", "3", *where)) == []

        assert re.search(r"\bg\W+[Ss]hare\W+Empty", succeed("groups", "list", *where))
        described = succeed("groups", "describe", "g", *where)
        assert re.search(r"state +Empty", described) and re.search(r"members +0", described)
        unknown = kshare("groups", "describe", "nobody", *where)
        assert unknown.returncode == 1 and "GROUP_ID_NOT_FOUND" in unknown.stderr

        succeed("topics", "delete", "orders", *where)
        assert "orders" not in succeed("topics", "list", *where)
        gone = kshare("topics", "delete", "orders", *where)
        hint = "kshare: topic orders does not exist; kshare topics list shows all topics\n"
        assert (gone.returncode, gone.stderr) == (2, hint)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS) as running:
        yield running


def test_a_group_from_the_beginning_released_peeked_at_and_reset(cluster: KshareCluster) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    succeed("topics", "create", "jobs", *where)
    succeed("produce", "jobs", "a", "b", "c", *where)
    consume = ("consume", "jobs", "--group", "workers", *where)
    late = kshare("consume", "jobs", "--group", "late", "--timeout", "1", *where)
    assert (
        late.returncode == 0
        and rows(late.stdout) == []
        and "use --from-beginning to begin with the first" in late.stderr
    )

    released = rows(succeed(*consume, "--from-beginning", "--timeout", "30", "--release"))
    assert [(row[2], row[4]) for row in released] == [("1", "a"), ("1", "b"), ("1", "c")], "each once, and it ends"
    for _ in range(2):
        peeked = rows(succeed("peek", "jobs", "--group", "workers", *where))
        assert [row[3] for row in peeked] == ["a", "b", "c"]
    taken = rows(succeed(*consume, "--accept", "--max", "3"))
    assert [(row[2], row[4]) for row in taken] == [("2", "a"), ("2", "b"), ("2", "c")], "peeking counted nothing"
    assert rows(succeed("peek", "jobs", "--group", "workers", *where)) == []
    assert [row[3] for row in rows(succeed("peek", "jobs", "--offset", "1", "--max", "1", *where))] == ["b"]

    again = kshare(*consume, "--from-beginning", "--timeout", "1")
    assert again.returncode == 0 and "kshare groups reset workers --topic jobs --to-earliest" in again.stderr
    reset = ("groups", "reset", "workers", "--topic", "jobs", "--to-offset", "2", "--json", *where)
    offsets = [{"topic": "jobs", "partition": 0, "before": 3, "start_offset": 2}]
    assert json.loads(succeed(*reset, "--dry-run")) == {"offsets": offsets}
    assert rows(succeed(*consume, "--timeout", "1")) == [], "a dry run changes nothing"
    assert json.loads(succeed(*reset)) == {"offsets": offsets}
    assert [row[4] for row in rows(succeed(*consume, "--max", "1"))] == ["c"]

    typo = ("groups", "reset", "worker", "--topic", "jobs", "--to-earliest", *where)
    text = "kshare: group worker does not exist yet; its start offsets create it; did you mean workers?\n"
    assert [kshare(*typo, *more).stderr for more in (["--dry-run"], [], [])] == [text, text, ""]

    succeed("groups", "set", "workers", "share.delivery.count.limit=3", *where)
    refused = kshare("groups", "set", "workers", "share.delivery.count.limit=1", *where)
    assert refused.returncode == 1 and "INVALID_CONFIG" in refused.stderr
    succeed("groups", "delete", "workers", *where)
    gone = kshare("groups", "delete", "workers", *where)
    assert gone.returncode == 1 and "GROUP_ID_NOT_FOUND" in gone.stderr


def test_max_archives_no_record_that_was_not_shown(cluster: KshareCluster) -> None:
    """The ten records are one batch, which each consume acquires as a whole; the second one is the last delivery."""
    where = ("--bootstrap", cluster.bootstrap)
    succeed("topics", "create", "parts", *where)
    values = [f"part {number}" for number in range(10)]
    succeed("produce", "parts", *values, *where)
    succeed("groups", "set", "fitters", "share.delivery.count.limit=2", "share.auto.offset.reset=earliest", *where)
    consume = ("consume", "parts", "--group", "fitters", "--max", "1", *where)
    first, second = kshare(*consume), kshare(*consume)
    assert [row[4] for row in rows(first.stdout)] == values[:1] and "archive" not in first.stderr
    assert [row[4] for row in rows(second.stdout)] == values[1:], "all that were left"
    assert "8 more records than --max are shown" in second.stderr and "share.delivery.count.limit" in second.stderr
    assert rows(succeed(*consume, "--timeout", "3")) == []


def test_records_before_a_line_that_is_none_are_stored(cluster: KshareCluster) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    succeed("topics", "create", "bytes", *where)
    produce = [KSHARE, "produce", "bytes", *where]
    values = b"plain\n\xff\xfe bytes\r\nplain too\n"
    done = subprocess.run(produce, input=values, capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, b"produced 3 records to bytes\n"), done.stderr
    bad_lines = {
        b'{"value": "\xff"}': "'utf-8' codec can't decode byte 0xff in position 11: invalid start byte",
        rb'{"value": "v", "headers": [{"name": "h\ud800"}]}': r"the name of header 'h\ud800' is not UTF-8",
        b'{"value": ' + b"[" * 100_000: "its JSON is nested too deeply",
    }
    for line, problem in bad_lines.items():
        lines = b'{"value": "before"}\n' + line + b'\n{"value": "after"}\n'
        refused = subprocess.run(
            [*produce, "--input", "json"], input=lines, capture_output=True, timeout=LIMIT_S, check=False
        )
        assert refused.returncode == 2
        assert refused.stderr.decode() == f"kshare: line 2 is not a record: {problem} (1 records are stored)\n"
    peeked = [json.loads(line) for line in succeed("peek", "bytes", "--output", "json", *where).splitlines()]
    assert [record.get("value") for record in peeked] == ["plain", None, "plain too", *["before"] * len(bad_lines)]
    assert base64.b64decode(peeked[1]["value_base64"]) == b"\xff\xfe bytes"


def test_a_header_whose_name_is_not_utf8_ends_no_command(cluster: KshareCluster) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    succeed("topics", "create", "named", *where)
    with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
        assert produce_raw(connection, "named", batch_with_header(b"name \xff\xfe")) == 0
    succeed("produce", "named", "next", *where)
    printed = succeed("peek", "named", "--output", "json", *where)
    assert [json.loads(line)["headers"] for line in printed.splitlines()] == [None, []]
    refused = kshare("produce", "named", "--input", "json", *where, stdin=printed)
    assert refused.returncode == 2 and "line 1 is not a record: headers must be a list" in refused.stderr
    redrive = kshare("redrive", "--offsets", "named:0:0-1", *where)
    assert redrive.returncode == 1 and "moved 1 records" in redrive.stdout
    assert "cannot move 1 records: the name of a header is not UTF-8" in redrive.stdout


@pytest.mark.parametrize(
    "command", [["produce", "invioces", "x"], ["consume", "invioces", "--group", "g"], ["peek", "invioces"]]
)
def test_a_typo_is_told_and_makes_no_topic(cluster: KshareCluster, command: list[str]) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    kshare("topics", "create", "invoices", *where)
    refused = kshare(*command, *where)
    assert (refused.returncode, refused.stderr) == (
        2,
        "kshare: topic invioces does not exist; did you mean invoices?\n",
    )
    assert "invioces" not in succeed("topics", "list", *where)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["peek", "invoices", "--group", "biling"], "there is no share group biling"),
        (["groups", "set", "g", "--unset", "share.auto.offset.rest"], "did you mean share.auto.offset.reset?"),
        (["brokers", "set", "--unset", "log.retention.hour"], "did you mean log.retention.hours?"),
        (["topics", "create", "wide", "--partitions", "99999999"], "creating topic wide failed"),
        (["consume", "invoices", "--group", "old"], "group old is of type classic, not a share group"),
    ],
    ids=["group", "group-config", "broker-config", "partitions", "type"],
)
def test_other_mistakes_are_told_in_one_line(cluster: KshareCluster, command: list[str], told: str) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    kshare("topics", "create", "invoices", *where)
    classic = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "old", "group.protocol": "classic"})
    classic.commit(offsets=[TopicPartition("invoices", 0, 0)], asynchronous=False)
    classic.close()
    refused = kshare(*command, *where)
    assert refused.returncode == 2 and told in refused.stderr, refused.stdout + refused.stderr
    assert refused.stderr.startswith("kshare: ") and refused.stderr.count("\n") == 1


def test_a_consumer_that_is_terminated_leaves_its_group(cluster: KshareCluster) -> None:
    """`timeout 10 kshare consume …` and `docker stop` send SIGTERM."""
    where = ("--bootstrap", cluster.bootstrap)
    kshare("topics", "create", "ended-jobs", *where)
    with subprocess.Popen(
        [KSHARE, "consume", "ended-jobs", "--group", "ended", *where], stdout=subprocess.PIPE
    ) as consumer:
        _wait_for_member(cluster, "ended", "ended-jobs")
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(timeout=LIMIT_S) == 0
    succeed("groups", "reset", "ended", "--topic", "ended-jobs", "--to-earliest", *where)


def test_roles_are_found_through_the_gateway_and_lists_are_whole_in_a_pipe(cluster: KshareCluster) -> None:
    environment = {"KSHARE_BOOTSTRAP": cluster.bootstrap}
    long_name = "long-" * 20
    succeed("topics", "create", long_name, environment=environment)
    assert long_name in succeed("topics", "list", environment=environment)
    if cluster.upstream is not None:  # the catalog has the topics that share groups use
        succeed("consume", long_name, "--group", "readers", "--timeout", "1", environment=environment)
    assert long_name in succeed("partitions", "list", environment=environment)
    listed = json.loads(succeed("partitions", "list", long_name, "--json", environment=environment))
    assert [(row["topic"], row["leader_node_id"], row["is_leader_live"]) for row in listed["partitions"]] == [
        (long_name, 1, True)
    ]
    assert len(json.loads(succeed("state", "partitions", "--json", environment=environment))["state_partitions"]) == 50
    roles = {row["role"] for row in json.loads(succeed("nodes", "--json", environment=environment))["nodes"]}
    assert roles == {"coordinator", "gateway", "leader", "share-coordinator"}
    groups = json.loads(succeed("groups", "list", "--json", environment=environment))
    assert set(groups) == {"groups"}


def test_the_first_interrupt_ends_a_consumer_whose_cluster_is_gone(tmp_path: Path) -> None:
    with KshareCluster(tmp_path) as cluster:
        succeed("topics", "create", "jobs", "--bootstrap", cluster.bootstrap)
        consume = [KSHARE, "consume", "jobs", "--group", "g", "--bootstrap", cluster.bootstrap]
        consumer = subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _wait_for_member(cluster, "g", "jobs")
    consumer.send_signal(signal.SIGINT)
    try:
        consumer.communicate(timeout=10)  # far below librdkafka's own limits
    finally:
        consumer.kill()


def _wait_for_member(cluster: KshareCluster, group: str, topic: str = "orders") -> None:
    """Until a member has partitions: a group that starts at the newest record has no place before."""
    for _ in range(100):
        done = kshare("groups", "describe", group, "--bootstrap", cluster.bootstrap)
        if f"{topic}: " in done.stdout:
            return
    raise AssertionError(f"no member of {group} has partitions: {done.stdout}{done.stderr}")


def test_a_directory_or_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with KshareCluster(tmp_path / "a") as cluster:
        other = kshare("up", "--data-dir", str(cluster.data_dir), "--listen", "127.0.0.1:0")
        assert other.returncode == 2 and f"in use by another kshare up or attach (pid {cluster.pid})" in other.stderr
        other = kshare("up", "--data-dir", str(tmp_path / "b"), "--listen", cluster.bootstrap)
        assert other.returncode == 2 and f"cannot listen on {cluster.bootstrap}" in other.stderr


def test_the_demo_accounts_for_every_order() -> None:
    output = succeed("demo", "--orders", "2000")
    assert re.search(r"produced\W+2000\b", output)
    assert re.search(r"lost\W+0\b", output) and re.search(r"accepted twice\W+0\b", output)
    assert "died while it held" in output


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [KSHARE, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as demo:
        assert demo.stdout is not None
        pids: list[int] = []
        for line in demo.stdout:
            if "accepted" in line:
                pids = _descendants(demo.pid)
                break
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 130
    assert list(tmp_path.iterdir()) == []
    assert len(pids) >= 5, "kshare up with its roles, a producer and at least three workers"
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def test_lag_and_client_ids_of_groups_and_what_a_topic_has(cluster: KshareCluster) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    succeed("topics", "create", "parcels", "--partitions", "2", "--config", "max.message.bytes=5000", *where)
    succeed("groups", "set", "carriers", "share.auto.offset.reset=earliest", *where)
    consume = [KSHARE, "consume", "parcels", "--group", "carriers", *where]
    with subprocess.Popen(consume, stdout=subprocess.PIPE, text=True) as consumer:
        _wait_for_member(cluster, "carriers", "parcels")
        group = _listed(where, "carriers")
        assert (group["members"], group["client_ids"]) == (1, ["kshare-cli"])
        described = json.loads(succeed("groups", "describe", "carriers", "-o", "json", *where))
        assert described["client_ids"] == ["kshare-cli"] and len(described["members"]) == 1
        consumer.send_signal(signal.SIGINT)
    succeed("produce", "parcels", "a", "b", "c", "--partition", "1", "--header", "h=1", *where)

    assert (_listed(where, "carriers")["members"], _listed(where, "carriers")["lag"]) == (0, 3)
    described = json.loads(succeed("groups", "describe", "carriers", "-o", "json", *where))
    assert described["lag"] == 3
    assert [(each["partition"], each["lag"]) for each in described["offsets"]] == [(0, 0), (1, 3)]
    assert "lag         3 records in 2 partitions" in succeed("groups", "describe", "carriers", *where)

    topic = json.loads(succeed("topics", "describe", "parcels", "-o", "json", *where))
    assert topic["records"] == 3 and topic["configs"]["max.message.bytes"] == "5000"
    assert [(each["first_offset"], each["end_offset"]) for each in topic["partitions"]] == [(0, 0), (0, 3)]
    assert topic["groups"] == [{"group": "carriers", "members": 0, "lag": 3}]
    assert "records     3 in 2 partitions" in succeed("topics", "describe", "parcels", *where)
    (record, *_) = map(json.loads, succeed("peek", "parcels", "-o", "json", *where).splitlines())
    assert record["headers"] == [{"name": "h", "value": "1"}] and record["partition"] == 1

    unknown = kshare("groups", "describe", "carrier", *where)
    assert unknown.returncode == 1 and "did you mean carriers?" in unknown.stderr


def test_a_watched_listing_is_one_json_object_for_each_view(cluster: KshareCluster) -> None:
    command = [KSHARE, "topics", "list", "--watch", "--interval", "0.1", "--json", "--bootstrap", cluster.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        views = 0
        for line in watching.stdout:
            views += line == "}\n"
            if views == 3:
                break
        watching.send_signal(signal.SIGINT)
    assert watching.returncode == 0


def test_top_has_lag_and_rates(cluster: KshareCluster) -> None:
    where = ("--bootstrap", cluster.bootstrap)
    succeed("topics", "create", "letters", *where)
    succeed("groups", "set", "postmen", "share.auto.offset.reset=earliest", *where)
    succeed("produce", "letters", "a", "b", *where)
    succeed("consume", "letters", "--group", "postmen", "--max", "1", *where)
    command = [KSHARE, "top", "--interval", "0.5", "--json", "--rows", "100", *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        first, second = _next_object(top.stdout), _next_object(top.stdout)
        top.send_signal(signal.SIGINT)
    assert top.returncode == 0
    (before,) = [group for group in first["groups"] if group["group"] == "postmen"]
    (after,) = [group for group in second["groups"] if group["group"] == "postmen"]
    assert (before["lag"], before["finished"]) == (1, None)
    assert (after["lag"], after["finished"], after["lag_change"]) == (1, 0.0, 0.0)
    assert {"topic": "letters", "produced": 0.0} in second["topics"]


def _next_object(lines: Iterable[str]) -> dict[str, list[dict[str, object]]]:
    text = ""
    for line in lines:
        text += line
        if line == "}\n":
            break
    found: dict[str, list[dict[str, object]]] = json.loads(text)
    return found


def _listed(where: tuple[str, ...], group: str) -> dict[str, object]:
    groups: list[dict[str, object]] = json.loads(succeed("groups", "list", "--json", *where))["groups"]
    (found,) = [each for each in groups if each["group"] == group]
    return found


def test_a_config_that_is_set_to_nothing_is_shown(cluster: KshareCluster) -> None:
    """An empty prefix allows dead-letter topics of any name."""
    where = ("--bootstrap", cluster.bootstrap)
    name = "errors.deadletterqueue.topic.name.prefix"
    succeed("brokers", "set", f"{name}=", *where)
    assert {"config": name, "value": ""} in json.loads(succeed("brokers", "configs", "--json", *where))["configs"]
    succeed("brokers", "set", "--unset", name, *where)
