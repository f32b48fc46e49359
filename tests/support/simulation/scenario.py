"""One seed from start to end: a cluster, its clients, faults, peace, and the account.

A plan is drawn from the seed. While producers and members work, faults come and go; then they stop, and within
`DRAIN_LIMIT_S` of virtual time every record of every group must have come to its end. In many seeds all hosts are
started anew then, and everything is drained again. The logs are read again through a gateway, and the checker compares
all of it.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE_SUMMARY
from kshare_rpc.network import CallFailed
from support.simulation.activities.activities import Activities, stopped
from support.simulation.checker import Checker, Expectations, Violation
from support.simulation.cluster import EMBEDDED, KAFKA, OBSERVER, RPC_PORT, Cluster
from support.simulation.evidence import DeadLetter, RecordKey
from support.simulation.faults import Fault, FaultInjector
from support.simulation.history import DeletionAsked, FaultEvent, History, Note, RecordsDeleted
from support.simulation.kafka_clients.admin import LATEST, Admin
from support.simulation.kafka_clients.member import ShareMember
from support.simulation.kafka_clients.producer import Producer
from support.simulation.kafka_clients.protocol import ReadRecord
from support.simulation.kafka_clients.session import TopicMetadata
from support.simulation.kafka_clients.transactional_producer import TransactionalProducer, Work
from support.simulation.loop import Deadlock, Incarnation, LimitReached, VirtualLoop
from support.simulation.mutations import Mutation
from support.simulation.network import SimulatedNetwork
from support.simulation.plan import RETENTION_BYTES, STALLS, Plan, dead_letter_topic
from support.simulation.rules.batch_files import batches_are_there
from support.simulation.rules.etcd_metadata import journals_are_written_once
from support.simulation.rules.fenced_logs import Confirmation, confirmations_count, watched_owners
from support.simulation.rules.unexpected import watched_logs
from support.simulation.seeds.activity_coverage import activities_met
from support.simulation.seeds.coverage import (
    ACTIVITIES,
    FAULTS,
    FOUND_AGAIN,
    HOLE_LEFT,
    JOINED_HIT,
    LIVENESS,
    Counts,
    Item,
    watched_machines,
)
from support.simulation.seeds.script import NO_TRANSACTION, Batch, Script, draw_script
from support.simulation.swarm import FAULT_KINDS, draw_swarm_plan, members_behaviour

TOPIC = "orders"
LAST_TOPIC = "created-last"
"""Confirmed a moment before all hosts lose their power."""
TIME_LIMIT_S = 1_200.0
STEP_LIMIT = 600_000
DRAIN_LIMIT_S = 300.0
DRAIN_POLL_S = 2.0
CATALOG_BEHIND_S = 9.0
"""So long after the last fault a gateway may not know a new topic: the answer to its watch of the catalog was lost, and
it asks again after the wait of the watch (3 s), `catalog_follower.CALL_TIMEOUT_MS` and a rest."""
VIOLATIONS_SHOWN = 3
ORDERLY_FAULTS = ("stop", "drain")
DELETION_DELAY_S = 30.0
"""As long as the faults of one cluster: a leader that is cut off delivers what it has fetched before."""
HEALTHY_WITHIN_S = 30.0
"""After the drain; health checks may show a failure until the next attempt succeeded."""


@dataclass(slots=True)
class Outcome:
    """What one run gave. `history` has everything that happened."""

    plan: Plan
    violations: list[Violation]
    history: History
    digest: str
    steps: int
    virtual_seconds: float
    faults: Sequence[Fault] = ()
    coverage: Counts = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    def report(self) -> str:
        lines = [self.plan.describe(), *(f"  {fault.at:8.3f}  {fault}" for fault in self.faults)]
        return "\n".join([*lines, *(str(violation) for violation in self.violations)])


@dataclass(slots=True)
class Account:
    """What a finished run hands to the checker."""

    logs: dict[int, list[ReadRecord]] = field(default_factory=dict)
    log_starts: dict[int, int] = field(default_factory=dict)
    log_ends: dict[int, int] = field(default_factory=dict)
    log_markers: dict[int, list[int]] = field(default_factory=dict)
    earlier_logs: dict[int, list[ReadRecord]] = field(default_factory=dict)
    dead_letters: dict[str, list[DeadLetter]] = field(default_factory=dict)
    late: list[Violation] = field(default_factory=list)


class SeedRun:
    """One run of one plan; see the module's text.

    `faults` or a whole `script` instead of the seed's own: times from the ready cluster.
    """

    def __init__(
        self,
        plan: Plan,
        mutation: Mutation | None = None,
        *,
        faults: Sequence[Fault] | None = None,
        script: Script | None = None,
    ) -> None:
        self.plan = plan
        self.loop = VirtualLoop(time_limit=TIME_LIMIT_S, step_limit=STEP_LIMIT)
        self.random = random.Random(f"{plan.seed}/scenario")
        self._mutation = mutation or Mutation()
        self.confirmations: list[Confirmation] = []
        """Of the owners of fenced logs, with the kafka engine."""
        self.cluster = Cluster(self.loop, str(plan.seed), plan.shape, mutation)
        drawn = draw_script(plan, list(self.cluster.hosts)) if script is None else script
        self.script = drawn if faults is None else replace(drawn, faults=tuple(faults))
        self.injector = FaultInjector(self.cluster, random.Random(f"{plan.seed}/injector"), FAULT_KINDS)
        self.activities = Activities(self.cluster, plan, TOPIC)
        self.faults: list[Fault] = []
        self.coverage: Counts = Counter()
        self.behaviour = members_behaviour(plan)
        self.members: dict[str, list[ShareMember]] = {group: [] for group in plan.groups}
        self._observer = SimulatedNetwork(self.cluster.fabric, Incarnation(OBSERVER, 1))
        self._member_count = 0
        self._peaceful_at = 0.0
        self._member_names: dict[str, str] = {}
        self._acknowledge_counter = [0]

    @property
    def _is_kafka(self) -> bool:
        return self.plan.shape.engine == KAFKA

    @property
    def _is_orderly(self) -> bool:
        """Whether nothing crashes, is cut off or times out."""
        brokers = self.cluster.broker_hosts
        return all(fault.name in ORDERLY_FAULTS and not brokers.keys() & fault.hosts for fault in self.faults)

    def run(self) -> Outcome:
        plan, history = self.plan, self.cluster.history
        history.add(Note(0.0, plan.describe()))
        violations: list[Violation] = []
        account = Account()
        try:
            with (
                watched_logs(self._note_bug, self.cluster.history, self.cluster.has_disk_failed),
                watched_owners() as self.confirmations,
                watched_machines(self.coverage),
                self._mutation.patched(),
            ):
                self.loop.run(self._main(account))
        except (Deadlock, LimitReached, AssertionError, TimeoutError) as problem:
            violations.append(Violation("did not finish", "".join(traceback.format_exception(problem)[-3:])))
        violations.extend(account.late)
        violations.extend(Violation("a bug came to light", text) for text in self.cluster.problems()[:5])
        violations.extend(self.check_confirmations())
        disks = {name: host.disk for name, host in self.cluster.hosts.items()}
        violations.extend(islice(batches_are_there(disks), VIOLATIONS_SHOWN))
        violations.extend(islice(journals_are_written_once(self.cluster.etcd.replaced), VIOLATIONS_SHOWN))
        if account.logs:
            expectations = Expectations(
                groups=plan.groups,
                logs=account.logs,
                delivery_count_limit=plan.delivery_count_limit,
                lock_duration_s=plan.lock_duration_ms / 1000,
                calm=not self.faults and self.activities.are_calm,
                orderly=self._is_orderly,
                log_starts=account.log_starts,
                hosts=list(self.cluster.all_names),
                impairments=self.injector.impairments,
                log_ends=account.log_ends,
                log_markers=account.log_markers,
                earlier_logs=account.earlier_logs,
                retention_bytes=RETENTION_BYTES if plan.retains_little else -1,
                deletion_delay_s=DELETION_DELAY_S if self._is_kafka else 0.0,
                switches_owners=self._is_kafka,
                member_names=self._member_names,
                clocks=self.cluster.clocks(),
                committed_groups=plan.committed_groups,
                dead_letters=account.dead_letters,
            )
            violations.extend(self.check(expectations))
        self.coverage[HOLE_LEFT] += sum(host.disk_conditions.hole_count for host in self.cluster.all_hosts())
        self.coverage[FOUND_AGAIN] += sum(host.disk_conditions.found_count for host in self.cluster.all_hosts())
        self.coverage[JOINED_HIT] += self.injector.met_by_joined
        self.coverage.update({Item(FAULTS, name): count for name, count in self.injector.met.items()})
        activities = activities_met(history, self.activities.administrator.lives)
        self.coverage.update({Item(ACTIVITIES, name): count for name, count in activities.items()})
        return Outcome(
            plan,
            violations,
            history,
            history.digest(),
            self.loop.steps,
            self.loop.now_s,
            tuple(self.faults),
            self.coverage,
        )

    def _note_bug(self, text: str) -> None:
        """Not of coroutines that are only unwound, after the end, on a closed loop."""
        if not self.loop.is_closed():
            self.cluster.fabric.bugs.append(text)

    def check(self, expectations: Expectations) -> list[Violation]:
        """What broke a rule."""
        checker = Checker(self.cluster.history, expectations)
        violations = checker.check()
        self.coverage.update({Item(LIVENESS, name): count for name, count in checker.liveness.items()})
        return violations

    def check_confirmations(self) -> list[Violation]:
        """What owners of fenced logs were told, and does not count; empty with the embedded engine."""
        if not self._is_kafka:
            return []
        return list(islice(confirmations_count(self.cluster.upstream, self.confirmations), VIOLATIONS_SHOWN))

    async def _main(self, account: Account) -> None:
        self.activities.prepare()
        await self.cluster.start()
        group_admin, admin = Admin(self.cluster.client("admin")), self._log_admin()
        for group in self.plan.groups:
            await group_admin.set_group_configs(group, self.plan.group_configs(group))
        metadata = await admin.create_topic(
            TOPIC, self.plan.partitions, self.plan.topic_configs(), replicas=self.plan.replicas
        )
        for group in self.plan.groups:
            for _ in range(self.plan.members_per_group):
                self._add_member(group)
        producing = self.loop.create_task(self._produce(), name="producers")
        disturbing = []
        if self.plan.has("churn"):
            disturbing.append(self.loop.create_task(self._churn(), name="churn"))
        if self.plan.deletes_records:
            disturbing.append(self.loop.create_task(self._delete_records(), name="deleting"))
        self.activities.begin(metadata, self.members)
        await self._let_faults_happen()
        await stopped(disturbing)
        await self.activities.end()
        self._become_peaceful()
        await asyncio.wait_for(producing, DRAIN_LIMIT_S)
        account.late = await self._drain(metadata, account)
        account.late.extend(await self._drain_anew(metadata, account))
        account.late.extend(await self._sick_nodes())
        account.late.extend(await self.activities.finished())
        for member in self._all_members():
            await member.leave()
        if not account.late:
            await self._read_everything(admin, account)

    def _log_admin(self) -> Admin:
        """An administrator of what has the logs."""
        name = "log-admin" if self._is_kafka else "admin"
        return Admin(self.cluster.log_client(name))

    # Before peace

    def _all_members(self) -> list[ShareMember]:
        return [member for members in self.members.values() for member in members]

    def _add_member(self, group: str) -> None:
        self._member_count += 1
        member = ShareMember(
            self.cluster.client(f"member-{self._member_count}"),
            group=group,
            topic=TOPIC,
            behaviour=self.behaviour,
            version=self.random.choice((1, 2)),
            counter=self._acknowledge_counter,
        )
        self._member_names[member.member_id] = member.name
        self.members[group].append(member)
        member.start()

    async def _produce(self) -> None:
        plan = self.plan
        shares = []
        for name in dict.fromkeys(batch.producer for batch in self.script.work):
            batches = [batch for batch in self.script.work if batch.producer == name]
            number = name[1:]
            if batches[0].transaction == NO_TRANSACTION:
                client = self.cluster.log_client(f"producer-{number}")
                producer = Producer(client, TOPIC, spread_s=plan.batch_spread_s, first_goes_alone=self._is_kafka)
                shares.append(producer.run_at(self._values_of(batches)))
                continue
            transactional = TransactionalProducer(
                self.cluster.log_client(f"transactional-{number}"),
                TOPIC,
                version=1 if self._is_kafka else self.random.choice((1, 2)),
                timeout_ms=plan.transaction_timeout_ms,
                may_be_forgotten=self._is_kafka and (plan.deletes_records or plan.retains_little),
            )
            shares.append(transactional.run_at(self._transactions_of(batches)))
        await asyncio.gather(*shares)

    @staticmethod
    def _values_of(batches: Sequence[Batch], first: int = 0) -> dict[int, list[tuple[float, tuple[str, ...]]]]:
        """The values of each partition's batches, with their times; counted from `first` on."""
        work: dict[int, list[tuple[float, tuple[str, ...]]]] = {}
        for batch in batches:
            values = tuple(f"{batch.producer}-{first + index}" for index in range(batch.records))
            work.setdefault(batch.partition, []).append((batch.at, values))
            first += batch.records
        return work

    def _transactions_of(self, batches: Sequence[Batch]) -> list[tuple[float, Work]]:
        transactions: list[tuple[float, Work]] = []
        first = 0
        for number in dict.fromkeys(batch.transaction for batch in batches):
            parts = [batch for batch in batches if batch.transaction == number]
            work = self._values_of(parts, first)
            first += sum(batch.records for batch in parts)
            transactions.append((parts[0].at, {index: [values for _, values in each] for index, each in work.items()}))
        return transactions

    async def _delete_records(self) -> None:
        """An administrator deletes the older records of a partition, now and then."""
        client = self.cluster.log_client("deleter")
        admin = Admin(client)
        while True:
            await asyncio.sleep(2 + 8 * self.random.random())
            partition = self.random.randrange(self.plan.partitions)
            offset = int(await admin.offset(TOPIC, partition, LATEST) * 0.6 * self.random.random())
            client.history.add(DeletionAsked(client.now(), partition, offset))
            low_watermark = await admin.delete_records(TOPIC, partition, offset)
            client.note(f"DeleteRecords below {partition}@{offset}: {low_watermark}")
            if low_watermark is not None:
                client.history.add(RecordsDeleted(client.now(), partition, low_watermark))

    async def _churn(self) -> None:
        """Members die, leave and join."""
        while True:
            await asyncio.sleep(2 + 10 * self.random.random())
            group = self.random.choice(self.plan.groups)
            members = self.members[group]
            member = self.random.choice(members)
            members.remove(member)
            if STALLS in self.activities and self.random.random() < 0.3:
                member.vanish()
            elif self.random.random() < 0.6:
                member.crash()
            else:
                await member.leave()
            await asyncio.sleep(2 * self.random.random())
            self._add_member(group)

    async def _let_faults_happen(self) -> None:
        plan, start = self.plan, self.loop.time()
        self.faults = [replace(fault, at=start + fault.at) for fault in self.script.faults]
        self.injector.start(self.faults)
        await asyncio.sleep(plan.fault_seconds)
        await self.injector.heal()

    # After it

    def _become_peaceful(self) -> None:
        self._peaceful_at = self.loop.time()
        behaviour = self.behaviour
        behaviour.release = behaviour.mixed = behaviour.late = behaviour.never = behaviour.renew = 0.0
        behaviour.reject = min(behaviour.reject, 0.05)
        behaviour.deferred = min(behaviour.deferred, 0.05)
        behaviour.work_s = 0.02

    async def _drain(self, metadata: TopicMetadata, account: Account) -> list[Violation]:
        """Waits until every share-partition starts at the end of its log; what is late then is a violation."""
        waiting = {(group, index): "unknown" for group in self.plan.groups for index in range(self.plan.partitions)}
        admin = self._log_admin()
        deadline = self.loop.time() + DRAIN_LIMIT_S
        ends: dict[int, int] = {}
        while waiting and self.loop.time() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)
            for group, index in list(waiting):
                if index not in ends:
                    contents = await admin.read_whole_log(TOPIC, index)
                    ends[index] = contents.end_offset
                    account.earlier_logs.setdefault(index, contents.records)
                start_offset = await self._start_offset(metadata, group, index)
                if start_offset is not None and start_offset > ends[index]:
                    # A transaction has ended since, and its marker is behind the end that was read.
                    ends[index] = (await admin.read_whole_log(TOPIC, index)).end_offset
                waiting[group, index] = f"starts at {start_offset}, the log ends at {ends[index]}"
                if start_offset == ends[index]:
                    del waiting[group, index]
        return [
            Violation("not drained", f"{group}/{index} {state} after {DRAIN_LIMIT_S:.0f} s without faults")
            for (group, index), state in waiting.items()
        ]

    async def _drain_anew(self, metadata: TopicMetadata, account: Account) -> list[Violation]:
        """The drain after a new start of all hosts, in seeds that have it; what is late then."""
        if self._is_kafka:
            await self._start_all_anew(self.random)
            return await self._drain(metadata, account)
        if not self.plan.loses_power_at_end or account.late:
            return []
        # A node that is sick would be cured by the new start.
        return await self._sick_nodes() or await self._lose_all_power(metadata, account)

    async def _start_all_anew(self, draw: random.Random) -> None:
        """Every process of kshare dies at once, and all are started again.

        With the kafka engine they begin with nothing: the existing cluster has it all. With the embedded engine their
        disks have lost what was not synced.
        """
        hosts = [host for name, host in self.cluster.hosts.items() if name not in self.cluster.broker_hosts]
        names = tuple(host.name for host in hosts)
        self.cluster.history.add(FaultEvent(self.loop.now_s, "restart", names, "of all at once"))
        for host in hosts:
            host.crash()
        await asyncio.sleep(draw.random())
        for host in hosts:
            host.start()

    async def _lose_all_power(self, metadata: TopicMetadata, account: Account) -> list[Violation]:
        """A topic and a record of each partition are confirmed a moment before; all that is confirmed must be there."""
        admin = self._log_admin()
        await admin.create_topic(LAST_TOPIC, 1)
        producer = Producer(self.cluster.log_client("last-producer"), TOPIC)
        batches = {index: [(0.0, (f"last-{index}",))] for index in range(self.plan.partitions)}
        await asyncio.wait_for(producer.run_at(batches), DRAIN_LIMIT_S)
        await self._start_all_anew(random.Random(f"{self.plan.seed}/power loss"))
        late = await self._drain(metadata, account)
        if not late and not await admin.shows(LAST_TOPIC, exists=True):
            late.append(Violation("confirmed, and gone after a power loss", f"topic {LAST_TOPIC}"))
        return late

    async def _sick_nodes(self) -> list[Violation]:
        """After all faults and the drain every node runs, and reports no problem; one that does is given some time."""
        deadline = self.loop.time() + HEALTHY_WITHIN_S
        while sick := self._reported_problems():
            if self.loop.time() >= deadline:
                return [Violation("a node is not healthy", f"{name}: {problem}") for name, problem in sick]
            await asyncio.sleep(DRAIN_POLL_S)
        return []

    def _reported_problems(self) -> list[tuple[str, str]]:
        """Host names, and what their nodes' health checks say."""
        found: list[tuple[str, str]] = []
        for name, host in self.cluster.hosts.items():
            problems = ["does not run"] if host.node is None else host.by_its_clock(host.node.problems)
            found.extend((name, problem) for problem in problems)
        return found

    async def _read_everything(self, admin: Admin, account: Account) -> None:
        for index in range(self.plan.partitions):
            contents = await admin.read_whole_log(TOPIC, index)
            account.logs[index], account.log_starts[index] = contents.records, contents.start_offset
            account.log_ends[index], account.log_markers[index] = contents.end_offset, contents.markers
        if self.plan.dead_letter_groups:
            ends = [impairment.end for impairment in self.injector.impairments]  # what is on a full link arrives later
            await asyncio.sleep(max([self._peaceful_at, *ends]) + CATALOG_BEHIND_S - self.loop.time())
        for group in self.plan.dead_letter_groups:
            account.dead_letters[group] = await self._read_dead_letters(admin, dead_letter_topic(group))

    async def _read_dead_letters(self, admin: Admin, topic: str) -> list[DeadLetter]:
        """The committed ones; empty where the topic was never created."""
        found: list[DeadLetter] = []
        for index in range(await admin.partition_count(topic)):
            for record in await admin.read_log(topic, index):
                if not record.committed:  # its transaction was aborted, and the leader sent it again
                    continue
                texts = {name: (value or b"").decode() for name, value in record.headers}
                key = RecordKey(
                    texts["__dlq.errors.group"],
                    int(texts["__dlq.errors.partition"]),
                    int(texts["__dlq.errors.offset"]),
                )
                found.append(DeadLetter(key, int(texts["__dlq.errors.delivery.count"]), record.value))
        return found

    async def _start_offset(self, metadata: TopicMetadata, group: str, index: int) -> int | None:
        """The durable start offset, None where no share coordinator says it."""
        for name in self.cluster.hosts:
            if not name.startswith("share-coordinator"):
                continue
            request = share_coordinator_pb2.ReadShareGroupStateSummaryRequest(group_id=group)
            request.partitions.add(topic_id=metadata.topic_id.bytes, partition=index, leader_epoch=-1)
            try:
                channel = self._observer.connect(f"{name}:{RPC_PORT}")
                answer, _ = await channel.call(READ_SHARE_GROUP_STATE_SUMMARY, request, timeout_ms=2_000)
            except CallFailed:
                continue
            if answer.results[0].error_code == 0:
                return answer.results[0].start_offset
        return None


def run_seed(seed: int, mutation: Mutation | None = None, *, engine: str = EMBEDDED) -> Outcome:
    """Draws what a seed has, and its plan, and runs it."""
    return SeedRun(draw_swarm_plan(seed, engine), mutation).run()


def run_script(script: Script, mutation: Mutation | None = None) -> Outcome:
    return SeedRun(script.plan, mutation, script=script).run()
