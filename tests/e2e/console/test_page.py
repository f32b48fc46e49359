"""The console's page in a headless Chromium on a live cluster: figures, what can be done, hostile names, lost contact.

One cluster with two consoles serves all tests: that of `kshare up --console --console-admin`, where users sign in, and
a read-only one without. Tests change only what is their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicMetadata
from playwright.sync_api import Browser, Dialog, Error, Locator, Page, expect

from kshare.addresses import Address, parse_address
from kshare.commands.groups.group_requests import (
    delete_group,
    describe_configs,
    describe_share_group,
    list_groups,
    read_share_offsets,
)
from kshare.commands.groups.in_flight import read_in_flight
from kshare.commands.partitions import describe_partitions
from kshare.commands.resource_configs import BROKER, GROUP, TOPIC
from kshare.commands.state.role_network import local_role_address
from kshare.up.data_directory import ADMINISTRATOR_PROPERTIES
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import leader_pb2 as pb
from support.clients.administration import alter_group, create_topic, delete_topic
from support.clients.delivery import ACCEPT, REJECT, RELEASE, SETTINGS, Reader, counts_of, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.environment.browser import browser
from support.environment.free_ports import free_port

Found = TypeVar("Found")
EARLIEST, LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
WITHIN_MS = 20_000
PAGE_SCRIPT = Path(__file__).resolve().parents[3] / "services/console/src/kshare_console/page/app.js"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USER, PASSWORD = "anna", "anna-s3cret"
HOSTILE_GROUP = '<img src=x onerror=alert(1)>/"?#\u202e'
HOSTILE_VALUE = b'{"id":12345678901234567890,"note":"<script>alert(1)</script>"}'
WIDE = 150
"""Partitions of a topic: more than a list shows at a time."""
LOCK_MS = 600_000
"""Longer than the tests take on a slow machine."""
CHANGES = re.compile("^(Release|Reject|Redrive|Dry run|Drain|Change)$")
GONE_COORDINATOR = "127.0.0.1:1"
"""One that does not answer, which the overview of the read-only console tells as a problem."""
PAGES = (
    "",
    "groups",
    "groups/billing",
    "groups/billing/poison",
    "groups/billing/orders/0?offset=2",
    "records/orders/0/0",
    "dead-letters",
    "topics",
    "topics/orders",
    "placement",
)


class Console:
    """A read-only console without sign-in, in a process of its own that a test stops and starts again."""

    def __init__(self, cluster: KshareCluster) -> None:
        self._folder = cluster.folder
        self.address = f"127.0.0.1:{free_port()}"
        coordinator = address_in(cluster.data_dir / "run/coordinator.ready")
        flags = {
            "--config": str(cluster.data_dir / ADMINISTRATOR_PROPERTIES),
            "--bootstrap-servers": cluster.bootstrap,
            "--coordinator-address": f"{coordinator},{GONE_COORDINATOR}",
            "--console-listen": self.address,
            "--ready-file": str(self._folder / "page.ready"),
        }
        self._command = [sys.executable, "-m", "kshare_console", *(part for flag in flags.items() for part in flag)]

    def __enter__(self) -> Console:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with (self._folder / "page.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        wait_for((self._folder / "page.ready").exists, "the console is ready")

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(20) == 0, (self._folder / "page.log").read_text()[-2000:]
        (self._folder / "page.ready").unlink(missing_ok=True)


class Live(NamedTuple):
    """The cluster, its two consoles, and the address of listeners without sign-in."""

    cluster: KshareCluster
    bootstrap: str
    admin: str
    read_only: Console
    client: AdminClient


def address_in(ready_file: Path) -> str:
    wait_for(ready_file.exists, f"{ready_file} was written")
    return dict(line.partition("=")[::2] for line in ready_file.read_text().splitlines())["address"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    port, sasl_port = free_port(), free_port()
    settings = {
        **SETTINGS,
        "listeners": f"OPEN://127.0.0.1:{port},SIGNED://127.0.0.1:{sasl_port}",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,SIGNED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.signed.plain.sasl.jaas.config": f'{PLAIN} required user_{USER}="{PASSWORD}";',
        "group.share.max.record.lock.duration.ms": str(LOCK_MS),
    }
    folder = tmp_path_factory.mktemp("console-page")
    options = ("--console", "127.0.0.1:0", "--console-admin")
    with KshareCluster(folder, settings, port=port, options=options) as cluster:
        bootstrap = cluster.bootstrap
        with Console(cluster) as console, billing(bootstrap), hostile(bootstrap):
            admin = f"http://{address_in(cluster.data_dir / 'run/console.ready')}"
            client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            yield Live(cluster, bootstrap, admin, console, client)


def group(bootstrap: str, name: str, **configs: str) -> None:
    common = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": str(LOCK_MS)}
    alter_group(bootstrap, name, {**common, **{key.replace("_", "."): value for key, value in configs.items()}})


def billing(bootstrap: str) -> Reader:
    """A worker that holds 2, 3 and 7 to 9 of orders-0; 5 is released twice, 6 rejected, 0, 1 and 4 are done."""
    create_topic(bootstrap, "orders", 1)
    create_topic(bootstrap, "wide", WIDE)
    create_topic(bootstrap, "dlq.orders", 1, errors_deadletterqueue_group_enable="true")
    group(bootstrap, "billing", errors_deadletterqueue_topic_name="dlq.orders")
    produce(bootstrap, "orders", [f"order {number}" for number in range(10)])
    worker = Reader(bootstrap, "billing", "orders", client_id="worker-1")
    held = worker.take()
    assert len(held) == 10
    for number, kind in {0: ACCEPT, 1: ACCEPT, 4: ACCEPT, 5: RELEASE, 6: REJECT}.items():
        worker.consumer.acknowledge(held[number], kind)
    assert not worker.commit()
    with Reader(bootstrap, "billing", "orders", client_id="worker-2") as other:
        assert counts_of(other.take()) == [2]
        other.settle(RELEASE)
    return worker


def hostile(bootstrap: str) -> Reader:
    """A worker whose group, client id and record are written to break a page."""
    create_topic(bootstrap, "hostile", 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("hostile", HOSTILE_VALUE, key=b"\xff\x00", headers=[("<i>h</i>", b"<b>"), ("none", None)])
    assert producer.flush(30) == 0
    group(bootstrap, HOSTILE_GROUP)
    worker = Reader(bootstrap, HOSTILE_GROUP, "hostile", client_id="<svg onload=alert(1)>")
    worker.take()
    return worker


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page; a dialog of the browser, an error of a script, or a breach of the content policy fails the test."""
    problems: list[str] = []

    def asked(dialog: Dialog) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    def failed(error: Error) -> None:
        problems.append(str(error))

    context = chromium.new_context()
    found = context.new_page()
    found.on("dialog", asked)
    found.on("pageerror", failed)
    found.on("console", lambda said: problems.append(said.text) if "Content Security" in said.text else None)
    found.set_default_timeout(WITHIN_MS)
    expect.set_options(timeout=WITHIN_MS)
    yield found
    context.close()
    assert not problems


def open_page(page: Page, live: Live, place: str = "") -> None:
    """A page of the read-only console, once its figures are there."""
    page.goto(f"http://{live.read_only.address}/#/{place}")
    expect(page.locator("#main .loading")).to_have_count(0)
    expect(page.locator("#main h1")).to_be_visible()


def figure(page: Page, name: str) -> Locator:
    return page.locator(f'[data-figure="{name}"] .figure-value')


def cell(row: Locator, title: str) -> Locator:
    return row.locator(f'td[data-label="{title}"]')


def topics_of(live: Live) -> dict[str, TopicMetadata]:
    return live.client.list_topics(timeout=30).topics


def offsets_of(live: Live, topic: str, spec: OffsetSpec) -> list[int]:
    """By partition."""
    wanted = {TopicPartition(topic, each): spec for each in topics_of(live)[topic].partitions}
    found = live.client.list_offsets(wanted)
    return [future.result(30).offset for _, future in sorted(found.items(), key=lambda each: each[0].partition)]


def shown(name: str) -> str:
    return name.replace("\u202e", "\\u202e")


def read(live: Live, topic: str, offset: int, wanted: int = 1) -> list[Message]:
    """So many records of the partition 0."""
    consumer = Consumer({"bootstrap.servers": live.bootstrap, "group.id": "reading", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        return consumer.consume(wanted, 30)
    finally:
        consumer.close()


def coordinator_of(live: Live) -> Address:
    found = parse_address(address_in(live.cluster.data_dir / "run/coordinator.ready"), what="the coordinator")
    return local_role_address(found, live.cluster.data_dir)


def in_thread(call: Callable[..., Found], *arguments: object) -> Found:
    """For calls that run an event loop: this thread has that of playwright."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *arguments).result()


def placed_partitions(live: Live) -> int:
    return sum(len(each.partitions) for each in in_thread(describe_partitions, coordinator_of(live), ()).topics)


def share_groups(live: Live) -> list[str]:
    return [each.group_id for each in list_groups(live.bootstrap) if each.group_type == "share"]


def lag(live: Live, name: str) -> int:
    return sum(each.lag for each in read_share_offsets(live.bootstrap, name))


def in_flight(live: Live, name: str) -> list[pb.DescribeSharePartitionsResponse.Run]:
    """The runs of all share-partitions."""
    found = in_thread(read_in_flight, live.bootstrap, coordinator_of(live), name, None)
    return [run for each in found for run in each.runs]


def held(live: Live, name: str) -> int:
    runs = in_flight(live, name)
    return sum(each.last_offset - each.first_offset + 1 for each in runs if each.delivery_state == RecordState.ACQUIRED)


def check_configs(page: Page, live: Live, kind: int, name: str) -> None:
    rows = page.locator("section", has=page.get_by_role("heading", name="Configs")).locator("tbody tr")
    shown = dict(zip(cell(rows, "Config").all_text_contents(), cell(rows, "Value").all_text_contents(), strict=True))
    told = describe_configs(live.bootstrap, kind, name, list(shown))
    assert {key: value for key, value in shown.items() if value} == {key: value for key, value in told.items() if value}
    assert len(told) > 5


def overview_figures(page: Page, live: Live) -> None:
    expect(figure(page, "Lag")).to_have_text(str(sum(lag(live, each) for each in share_groups(live))))
    letters = [sum(offsets_of(live, each, LATEST)) for each in topics_of(live) if each.startswith("dlq.")]
    expect(figure(page, "Dead letters")).to_have_text(str(sum(letters)))
    total = placed_partitions(live)
    expect(figure(page, "Partitions")).to_have_text(str(total))
    for role in ("coordinator", "share-coordinator", "leader", "gateway"):
        expect(cell(page.locator(f'[data-role="{role}-1"]'), "State")).to_contain_text("healthy")
    expect(page.get_by_role("link", name="orders-0 · 2 to 3")).to_be_visible()


def groups_figures(page: Page, live: Live) -> None:
    assert (lag(live, "billing"), held(live, "billing")) == (6, 5)
    for name in share_groups(live):
        told = describe_share_group(live.bootstrap, name)
        link = page.get_by_role("link", name=shown(name), exact=True)
        row = page.locator("[data-group]", has=link)
        expect(cell(row, "Lag")).to_have_text(str(lag(live, name)))
        expect(cell(row, "Members")).to_have_text(str(len(told.members)))
        expect(cell(row, "In flight")).to_have_text(str(held(live, name)))
        expect(cell(row, "State")).to_contain_text(told.group_state)


def group_figures(page: Page, live: Live) -> None:
    (offset,) = read_share_offsets(live.bootstrap, "billing")
    row = page.locator('[data-partition="orders-0"]')
    expect(cell(row, "Start offset")).to_have_text(str(offset.start_offset))
    expect(cell(row, "Lag")).to_have_text(str(offset.lag))
    expect(cell(row, "Acquired")).to_have_text(str(held(live, "billing")))
    (member,) = describe_share_group(live.bootstrap, "billing").members
    row = page.locator('[data-list="members"] tbody tr')
    expect(cell(row, "Client")).to_have_text(member.client_id)
    expect(cell(row, "Member id")).to_have_text(member.member_id)
    expect(cell(row, "Host")).to_have_text(member.client_host)
    (assigned,) = member.assignment.topic_partitions
    expect(cell(row, "Assigned")).to_have_text(f"{assigned.topic_name}: {', '.join(map(str, assigned.partitions))}")
    expect(cell(row, "In flight")).to_have_text(str(held(live, "billing")))
    check_configs(page, live, GROUP, "billing")


def poison_figures(page: Page, live: Live) -> None:
    (run,) = [each for each in in_flight(live, "billing") if each.delivery_count > 1]
    row = page.locator("tbody tr")
    expect(cell(row, "Records")).to_have_text(f"orders-0 · {run.first_offset}")
    expect(cell(row, "Delivered")).to_have_text(f"{run.delivery_count} times")
    expect(cell(row, "State")).to_have_text(RecordState(run.delivery_state).name.capitalize())


def strip_figures(page: Page, live: Live) -> None:
    (offset,) = read_share_offsets(live.bootstrap, "billing")
    expect(figure(page, "Start offset")).to_have_text(str(offset.start_offset))
    expect(figure(page, "Log end")).to_have_text(str(offsets_of(live, "orders", LATEST)[0]))
    expect(figure(page, "Acquired")).to_have_text(str(held(live, "billing")))
    runs = in_flight(live, "billing")
    expect(page.locator("[data-row]")).to_have_count(len(runs))
    for run in runs:
        row = page.locator(f'[data-row="{run.first_offset}"]')
        expect(cell(row, "Records")).to_have_text(str(run.last_offset - run.first_offset + 1))
        expect(cell(row, "Delivered")).to_contain_text(str(run.delivery_count))
        expect(cell(row, "State")).to_contain_text(RecordState(run.delivery_state).name.capitalize())


def record_figures(page: Page, live: Live) -> None:
    (message,) = read(live, "orders", 0)
    expect(page.locator('[data-payload="Value"] pre')).to_have_text((message.value() or b"").decode())
    stamp = page.evaluate(f"import('/units.js').then((units) => units.time({message.timestamp()[1]}))")
    expect(page.locator(".facts")).to_contain_text(stamp)


def dead_letters_figures(page: Page, live: Live) -> None:
    letters = page.locator('[data-dead-letters="billing rejected"]')
    expect(cell(letters, "Records")).to_have_text(str(offsets_of(live, "dlq.orders", LATEST)[0]))
    expect(cell(letters, "Examples")).to_contain_text("orders-0 · 6")


def topics_figures(page: Page, live: Live) -> None:
    told = topics_of(live)
    expect(page.locator("[data-topic]")).to_have_count(len(told))
    for name, topic in told.items():
        row = page.locator(f'[data-topic="{name}"]')
        expect(cell(row, "Partitions")).to_have_text(str(len(topic.partitions)))
        expect(cell(row, "Replication")).to_have_text(str(len(topic.partitions[0].replicas)))


def topic_figures(page: Page, live: Live) -> None:
    row = page.locator('[data-list="partitions"] tbody tr')
    expect(cell(row, "Start offset")).to_have_text(str(offsets_of(live, "orders", EARLIEST)[0]))
    expect(cell(row, "End offset")).to_have_text(str(offsets_of(live, "orders", LATEST)[0]))
    expect(cell(row, "Leader")).to_have_text("leader-1")
    check_configs(page, live, TOPIC, "orders")


def placement_figures(page: Page, live: Live) -> None:
    row = page.locator('[data-node="leader-1"]')
    total = placed_partitions(live)
    expect(cell(row, "Partitions")).to_have_text(str(total))
    expect(cell(row, "State")).to_contain_text("in use")
    states = describe_configs(live.bootstrap, BROKER, "1", ["share.coordinator.state.topic.num.partitions"])
    row = page.locator('[data-node="share-coordinator-1"]')
    expect(cell(row, "Partitions")).to_have_text(*states.values())


FIGURES_OF = dict(
    zip(
        PAGES,
        (
            overview_figures,
            groups_figures,
            group_figures,
            poison_figures,
            strip_figures,
            record_figures,
            dead_letters_figures,
            topics_figures,
            topic_figures,
            placement_figures,
        ),
        strict=True,
    )
)


def test_every_page_shows_what_the_admin_api_says(page: Page, live: Live) -> None:
    views = re.findall(r"^import \{ (.*) \} from \"./views/", PAGE_SCRIPT.read_text(), re.MULTILINE)
    assert len(", ".join(views).split(", ")) == len(PAGES) + len(["signInPage"]), "a page has no comparison"
    for place, figures in FIGURES_OF.items():
        open_page(page, live, place)
        figures(page, live)


def test_a_problem_links_to_what_it_is_about(page: Page, live: Live) -> None:
    open_page(page, live)
    problem = page.locator(".problems li")
    expect(problem).to_contain_text("coordinator-2 does not answer")
    problem.get_by_role("link", name="Look at it").click()
    role = page.locator("tr.chosen")
    expect(role).to_be_in_viewport()
    expect(cell(role, "Address")).to_have_text(GONE_COORDINATOR)
    target = "import('/parts.js').then((parts) => parts.placeOf({ page: 'placement' }))"
    page.evaluate(f"{target}.then((place) => {{ location.hash = place }})")
    expect(page.locator("h1")).to_have_text("Placement")


def test_the_strip_shows_every_run_and_who_holds_it(page: Page, live: Live) -> None:
    open_page(page, live, "groups/billing/orders/0?offset=2")
    (offset,) = read_share_offsets(live.bootstrap, "billing")
    assert offset.start_offset == 2
    expect(figure(page, "Start offset")).to_have_text("2")
    expect(figure(page, "End offset")).to_have_text("10")
    expect(figure(page, "Acquired")).to_have_text("5")
    labels = [
        "Acquired, 2 to 3, delivered 1 time, held by worker-1",
        "Acknowledged, 4, delivered 1 time",
        "Available, 5, delivered 2 times",
        "Archived, 6, delivered 1 time",
        "Acquired, 7 to 9, delivered 1 time, held by worker-1",
    ]
    blocks = page.get_by_role("option").and_(page.locator("[data-run]"))
    expect(blocks).to_have_count(len(labels))
    assert [block.get_attribute("aria-label") for block in blocks.all()] == labels
    rows = page.locator("[data-row]")
    expect(cell(rows.last, "Held by")).to_have_text("worker-1")
    expect(cell(rows.last, "Records")).to_have_text("3")
    details = page.locator("section.details")
    expect(details).to_have_attribute("data-details", "2")
    page.locator('[data-run="2"]').focus()
    page.keyboard.press("End")
    expect(details).to_have_attribute("data-details", "7")
    page.keyboard.press("ArrowLeft")
    expect(details).to_have_attribute("data-details", "6")


def test_runs_that_a_strip_leaves_out_are_told_and_can_be_shown(page: Page, live: Live) -> None:
    """A strip has 2,000 runs at most; of every two records one is held."""
    records = 2_600
    create_topic(live.bootstrap, "many", 1)
    group(live.bootstrap, "many", share_partition_max_record_locks="4000")
    produce(live.bootstrap, "many", map(str, range(records)))
    held: list[int] = []
    with ExitStack() as workers:
        left = records
        while left:
            worker = workers.enter_context(Reader(live.bootstrap, "many", "many", client_id="worker"))
            taken = worker.take()
            for at, message in enumerate(taken):
                if at % 2:
                    held.append(message.offset())
                else:
                    worker.consumer.acknowledge(message, ACCEPT)
            assert not worker.commit()
            left -= len(taken)
        first, last = held[0], held[-1]
        open_page(page, live, f"groups/many/many/0?offset={last}")
        expect(figure(page, "Acquired")).to_have_text(f"{len(held):,}")
        details = page.locator("section.details")
        expect(details).to_contain_text(f"Offset {last:,} is in the part of the strip that is not shown.")
        details.get_by_role("link").click()
        expect(details).to_have_attribute("data-details", str(last))
        expect(details).to_contain_text("Held by")
        expect(figure(page, "Acquired")).to_have_text(f"{len(held):,}")
        page.get_by_role("link", name="Show the strip from its start").click()
        expect(page.locator(f'[data-run="{first}"]')).to_be_visible()
        open_page(page, live, f"groups/many/many/0?offset={records}")
        expect(details).to_contain_text(f"Offset {records:,} is not in flight")
    delete_group(live.bootstrap, "many")
    delete_topic(live.bootstrap, "many")


def test_a_stuck_record_is_found_and_released_in_four_clicks(page: Page, live: Live) -> None:
    create_topic(live.bootstrap, "parcels", 1)
    group(live.bootstrap, "parcel-workers")
    produce(live.bootstrap, "parcels", ["a", "b", "c"])
    with Reader(live.bootstrap, "parcel-workers", "parcels", client_id="stuck") as stuck:
        assert len(stuck.take()) == 3
        sign_in(page, live)
        clicks: list[Locator] = []

        def click(target: Locator) -> None:
            clicks.append(target)
            target.click()

        click(page.get_by_role("link", name="parcels-0 · 0 to 2"))
        click(page.locator('[data-run="0"]'))
        click(page.get_by_role("button", name="Release", exact=True))
        expect(page.locator("#dialog .question")).to_contain_text("parcels")
        click(page.locator("#confirm"))
        expect(page.locator("#notice")).to_have_text("3 records released.")
        expect(page.locator('[data-run="0"]')).to_have_attribute("aria-label", "Available, 0 to 2, delivered 1 time")
        assert len(clicks) == 4
        with Reader(live.bootstrap, "parcel-workers", "parcels", client_id="next") as following:
            assert counts_of(following.take()) == [2, 2, 2]
            following.settle()
        for message in stuck.held:
            stuck.consumer.acknowledge(message, ACCEPT)
        assert stuck.commit()


def confirm(page: Page, button: Locator, question: str) -> None:
    """First "no", which changes nothing, then "yes"."""
    for answer in ("Cancel", None):
        button.click()
        expect(page.locator("#dialog .question")).to_contain_text(question)
        page.locator("#confirm" if answer is None else f"#dialog button:text-is('{answer}')").click()


def test_changes_are_asked_back_and_done(page: Page, live: Live) -> None:
    """A config is altered, a record rejected and redriven, and a drain refused where nothing can take over."""
    create_topic(live.bootstrap, "returns", 1)
    create_topic(live.bootstrap, "dlq.returns", 1, errors_deadletterqueue_group_enable="true")
    dead_letters = {"topic_name": "dlq.returns", "copy_record_enable": "true"}
    group(live.bootstrap, "returners", **{f"errors_deadletterqueue_{key}": each for key, each in dead_letters.items()})
    produce(live.bootstrap, "returns", ["a", "b"])
    sign_in(page, live)
    with Reader(live.bootstrap, "returners", "returns", client_id="returner") as worker:
        assert len(worker.take()) == 2
        page.goto(f"{live.admin}/#/groups/returners/returns/0?offset=0")
        confirm(page, page.get_by_role("button", name="Reject", exact=True), "Reject 2 records of returns-0")
        expect(page.locator("#notice")).to_have_text("2 records rejected.")
    assert not held(live, "returners")
    wait_for(lambda: offsets_of(live, "dlq.returns", LATEST) == [2], "dead letters were written")
    alter_and_redrive(page, live)
    for role, words in {"leader": "no other live leader", "share-coordinator": "no other live share coord"}.items():
        page.goto(f"{live.admin}/#/placement")
        row = page.locator(f'[data-node="{role}-1"]')
        confirm(page, row.get_by_role("button", name="Drain"), f"Drain {role}-1?")
        expect(page.get_by_role("alert")).to_contain_text(words)
        page.get_by_role("button", name="Close").click()
        expect(cell(row, "State")).to_contain_text("in use")


def alter_and_redrive(page: Page, live: Live) -> None:
    name = "share.record.lock.duration.ms"
    page.goto(f"{live.admin}/#/groups/returners")
    row = page.locator("tr", has=page.get_by_text(name, exact=True))

    def write(value: str) -> None:
        row.get_by_role("button", name="Change").click()
        page.get_by_label("New value for group returners").fill(value)
        page.get_by_role("button", name="Go on").click()

    write("soon")
    expect(page.get_by_role("alert")).to_contain_text(name)
    page.get_by_role("button", name="Close").click()
    write("20000")
    expect(page.locator("#dialog .question")).to_contain_text(f"Set {name}=20000 of group returners?")
    page.get_by_role("button", name="Cancel").click()
    assert describe_configs(live.bootstrap, GROUP, "returners", [name]) == {name: str(LOCK_MS)}
    write("20000")
    page.locator("#confirm").click()
    expect(page.locator("#notice")).to_have_text(f"{name} is 20000 now.")
    expect(cell(row, "Value")).to_have_text("20000")
    assert describe_configs(live.bootstrap, GROUP, "returners", [name]) == {name: "20000"}

    page.goto(f"{live.admin}/#/dead-letters")
    row = page.locator('[data-dead-letters="returners rejected"]')
    row.get_by_role("button", name="Dry run").click()
    expect(page.locator("#dialog")).to_contain_text("2 records would be produced to their source topic again.")
    page.get_by_role("button", name="Close").click()
    assert offsets_of(live, "returns", LATEST) == [2]
    row.get_by_role("button", name="Redrive").click()
    expect(page.locator("#dialog .question")).to_contain_text("Produce 2 records of dlq.returns")
    page.locator("#confirm").click()
    expect(page.locator("#dialog")).to_contain_text("2 records produced to their source topic again.")
    page.get_by_role("button", name="Close").click()
    assert [each.value() for each in read(live, "returns", 2, 2)] == [b"a", b"b"]


def sign_in(page: Page, live: Live) -> None:
    page.goto(live.admin)
    page.get_by_label("User").fill(USER)
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator('[data-mode="admin"]')).to_be_visible()


def test_a_read_only_console_shows_nothing_that_changes(page: Page, live: Live) -> None:
    methods: set[str] = set()
    page.on("request", lambda request: methods.add(request.method))
    for place in PAGES:
        open_page(page, live, place)
        expect(page.locator('[data-mode="read-only"]')).to_be_visible()
        expect(page.get_by_role("button", name=CHANGES)).to_have_count(0)
        page.keyboard.press("r")
        page.keyboard.press("x")
    assert methods == {"GET"}


def test_hostile_names_and_payloads_are_text(page: Page, live: Live) -> None:
    open_page(page, live, "groups")
    page.get_by_role("link", name=shown(HOSTILE_GROUP), exact=True).click()
    expect(page.locator("h1")).to_have_text(f"Group {shown(HOSTILE_GROUP)}")
    expect(page.locator('[data-list="members"]')).to_contain_text("<svg onload=alert(1)>")
    open_page(page, live, f"groups/{quote(HOSTILE_GROUP, safe='')}/hostile/0?offset=0")
    expect(page.locator("section.details")).to_contain_text("<svg onload=alert(1)>")
    open_page(page, live, "records/hostile/0/0")
    value = page.locator('[data-payload="Value"] pre')
    expect(value).to_have_text('{\n  "id": 12345678901234567890,\n  "note": "<script>alert(1)</script>"\n}')
    page.get_by_role("button", name="Hex").last.click()
    expect(value).to_contain_text("7b 22 69 64")
    expect(page.locator('[data-payload="Key"] pre')).to_contain_text("ff 00")
    expect(page.get_by_role("cell", name="<i>h</i>")).to_be_visible()
    expect(page.locator("#main img, #main script, #main i")).to_have_count(0)


def test_long_lists_are_shown_in_parts_and_can_be_searched(page: Page, live: Live) -> None:
    open_page(page, live, "topics/wide")
    rows = page.locator('[data-list="partitions"] tbody tr')
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(WIDE - 100)
    page.keyboard.press("/")
    page.keyboard.type("149")
    expect(rows).to_have_count(1)


def test_figures_are_stale_while_the_console_is_away_and_live_again_after_it(page: Page, live: Live) -> None:
    open_page(page, live)
    badge = page.locator("[data-freshness]")
    expect(badge).to_have_attribute("data-freshness", "live")
    live.read_only.stop()
    expect(badge).to_have_attribute("data-freshness", "stale")
    expect(badge).to_contain_text("stale since")
    expect(figure(page, "Partitions")).not_to_have_text("unknown")
    live.read_only.start()
    expect(badge).to_have_attribute("data-freshness", "live")


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_keys_and_the_switch_of_the_theme(page: Page, live: Live) -> None:
    page.emulate_media(color_scheme="light")
    open_page(page, live)
    light = background(page)
    page.keyboard.press("t")
    dark = background(page)
    assert dark != light
    page.reload()
    expect(page.locator("#main h1")).to_be_visible()
    assert background(page) == dark
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.locator("h1")).to_have_text("Topics")
    page.keyboard.press("?")
    expect(page.locator("#dialog")).to_contain_text("Keys")
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).not_to_be_visible()


FIGURES = {
    "duration(265042)": "4 m 25 s",
    "duration(3600000)": "1 h",
    "duration(90061000)": "1 d 1 h",
    "duration(850)": "850 ms",
    "duration(-5)": "0 s",
    "bytes(1234567890)": "1.2 GB",
    "bytes(999)": "999 B",
    "count(12345)": "12,345",
    "count(null)": "unknown",
    "rate(0.44)": "0.4/s",
    "rate(1234.5)": "1,235/s",
    "counted(1, 'record')": "1 record",
    "offsets(7, 12)": "7 to 12",
}


def test_figures_have_the_units_that_people_use(page: Page, live: Live) -> None:
    open_page(page, live)
    for call, wanted in FIGURES.items():
        assert page.evaluate(f"import('/units.js').then((units) => units.{call})") == wanted
