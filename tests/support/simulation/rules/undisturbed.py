"""The times in which nothing disturbs the way that records take from a share-partition to a member.

On the way are the leader of the partition, the owner of the share-partition's state, the gateway at which the member
fetches, the member, and the brokers (kafka engine). `Disturbances` reads from the history who they are at each moment.
Where it cannot tell, as after a step of a move and until the state is loaded again, all hosts of the role are on it.

A way is disturbed

- while a fault lasts that hits a host on it, a link between two of them, or the whole network;
- while the lease of the leader or of the state's owner has run out;
- before a leader has loaded the state, while a fault hits a majority of the coordinators, or etcd, or a minority for
  `TAKEOVER_S`. Later the leader needs of them only its lease. For a group that reads committed records they matter
  always: they write the markers that end transactions;
- after each of these until it has settled: until the member fetched again and got records, or `SETTLING_S` have passed,
  in which the calls that were under way end;
- after a fault that kills a gateway, until that gateway has registered: it accepts no connections before;
- at the moment at which another leader or owner is known;
- by operators: a node that leaves is gone from then on, one that is upgraded or restarted is for some seconds.

Faults that all nodes stand without a pause do not count: those of clocks, and slow links, hosts and disks up to
`SLIGHT_S`. What a fault of reads has damaged in a node's memory stays there until all faults end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from support.simulation.evidence import Evidence, Impairment
from support.simulation.history import (
    Acquired,
    Delivered,
    Event,
    FaultEvent,
    FetchesFrom,
    LeaderSeen,
    LeaseRenewed,
    PartitionTaken,
    StateLoaded,
    StateOwnersSeen,
    StateWriteUnconfirmed,
    StateWritten,
)

SETTLING_S = 15.0
"""A client waits for an answer for so long (`protocol.REQUEST_TIMEOUT_S`), a gateway for 10 s and the fetch's wait."""
TAKEOVER_S = 6.0
"""Another coordinator takes over when the lease of the active one, of 5 s at most, has run out."""
SLIGHT_S = 0.3
HARMLESS = ("clock-drift", "clock-jump", "small-pieces")
SLOWING = ("slow-network", "slow-host", "slow-link", "slow-disk")
AT_ITS_BEGIN = ("half-open",)
"""A client whose connection is half open opens another one at once; its gateway notices the old one at the end."""
KILLING = ("crash", "silent-crash", "crash-between-steps", "crash-between-writes", "power-loss", "stop")
REGISTERED_WITHIN_S = 30.0
"""A fault of links keeps a gateway from the coordinator for less time; what registers later has started once more."""
DAMAGING = ("failing-reads", "flipped-bits", "misdirected-reads")
LOSSES = ("gateway-lost", "coordinator-lost", "share-coordinator-lost", "leader-lost")
"""The node never comes back (`fault_kinds.losses`)."""
OF_LINKS = ("partition", "one-way", "cut", "slow-link", "full-link")
"""They hit only what passes between their two hosts."""
OF_ETCD = "etcd-"
RESTARTS = ("restart", "upgrade")
RESTARTS_WITHIN_S = 12.0
"""10 s for an orderly stop, and the start."""
ALL_END = "all faults end"
"""The name of the event that `faults.FaultInjector` notes."""
LEADER, STATE_OWNER, BROKER, COORDINATOR = "leader", "share-coordinator", "broker", "coordinator"
GATEWAY = "gateway"

RELEVANT = (
    Acquired,
    Delivered,
    FaultEvent,
    LeaderSeen,
    LeaseRenewed,
    PartitionTaken,
    StateLoaded,
    StateOwnersSeen,
    StateWriteUnconfirmed,
    StateWritten,
)
"""What is looked through again for each share-partition."""

Place = tuple[str, int]
"""Group and partition."""
Period = tuple[float, float]


class Way(NamedTuple):
    """A member fetches a share-partition at a gateway, from `begin` to `end`."""

    place: Place
    member: str
    gateway: str
    begin: float
    end: float


class Holder(NamedTuple):
    """The host that leads a partition or owns its state from `since` on; "": not known."""

    since: float
    host: str


class Hosts(NamedTuple):
    """Who leads a partition and owns a share-partition's state from `begin` to `end`; "": not known."""

    begin: float
    end: float
    leader: str
    owner: str

    def are_on(self, way: Way, host: str) -> bool:
        role = _role(host)
        if role == LEADER:
            return self.leader in ("", host)
        if role == STATE_OWNER:
            return self.owner in ("", host)
        return role == BROKER or host in (way.gateway, way.member)


class Disturbances:
    """See the module's text."""

    def __init__(self, evidence: Evidence) -> None:
        self._events = [event for event in evidence.events if isinstance(event, RELEVANT)]
        healed = [event.time for event in self._events if isinstance(event, FaultEvent) and event.name == ALL_END]
        self.faults_end = healed[0] if healed else math.inf
        """When the last fault ends."""
        self.faults = list(self._that_matter(evidence.expected.impairments))
        self._committed_groups = evidence.expected.committed_groups
        self._coordinators = {host for host in evidence.expected.hosts if _role(host) == COORDINATOR}
        self._of_coordinators = list(self._faults_of_coordinators())
        self._lapses = self._lapses_of_leases()
        self._registered: dict[str, list[float]] = defaultdict(list)
        """When each gateway did so, at each of its starts and after a lost lease."""
        for event in self._events:
            if isinstance(event, FaultEvent) and event.name == "registered" and _role(event.hosts[0]) == GATEWAY:
                self._registered[event.hosts[0]].append(event.time)
        self._delivered: dict[tuple[Place, str, str], list[Period]] = defaultdict(list)
        """By the way on which records came: when the fetches were sent and answered."""
        for event in self._events:
            if isinstance(event, Delivered):
                way = ((event.group, event.partition), event.member, event.gateway.partition(":")[0])
                self._delivered[way].append((event.sent_at, event.time))
        self._state_partitions = {
            (event.group, event.partition): event.state_partition
            for event in self._events
            if isinstance(event, StateWritten) and event.state_partition >= 0
        }
        self._known: dict[Place, tuple[list[Hosts], list[Period]]] = {}
        """By share-partition: its hosts, and when it needed no coordinator."""

    def undisturbed(self, way: Way) -> list[Period]:
        """The parts of a way's time in which nothing disturbs it."""
        if way.place not in self._known:
            # Transactions end with markers, which a coordinator writes.
            reads_committed = way.place[0] in self._committed_groups
            self._known[way.place] = (
                list(self._hosts(way.place)),
                [] if reads_committed else self._loaded(way.place),
            )
        all_hosts, loaded = self._known[way.place]
        found = [disturbance for hosts in all_hosts for disturbance in self._of_hosts(hosts, way)]
        for period in self._of_coordinators:
            found.extend((first, self._settled(way, last)) for first, last in between(period, loaded))
        return list(between((way.begin, way.end), found))

    def other_leaders_hit(self, way: Way, begin: float, end: float) -> set[str]:
        """The leaders beside the way that a fault hits in this time, or hit so late before it that calls still wait."""
        on_way = {hosts.leader for hosts in self._known[way.place][0] if hosts.begin <= end and hosts.end > begin}
        return {
            host
            for fault in self.faults
            if fault.begin <= end and fault.end + SETTLING_S >= begin
            for host in fault.hosts
            if _role(host) == LEADER and host not in on_way
        }

    def has_fault(self, begin: float, end: float) -> bool:
        """Whether any fault was under way in this time."""
        return any(fault.begin <= end and fault.end >= begin for fault in self.faults)

    # What disturbs

    def _that_matter(self, faults: Sequence[Impairment]) -> Iterator[Impairment]:
        for fault in faults:
            if fault.name in LOSSES:
                yield fault._replace(end=math.inf)
            elif fault.name in AT_ITS_BEGIN:
                yield fault._replace(end=fault.begin)
            elif fault.name in DAMAGING:
                yield fault._replace(end=max(fault.end, self.faults_end))
            elif fault.name not in HARMLESS and not (fault.name in SLOWING and fault.strength <= SLIGHT_S):
                yield fault
        for event in self._events:
            if isinstance(event, FaultEvent) and event.name == "leave":
                yield Impairment(event.time, math.inf, event.hosts, event.name)
            elif isinstance(event, FaultEvent) and event.name in RESTARTS:
                yield Impairment(event.time, event.time + RESTARTS_WITHIN_S, event.hosts, event.name)

    def _lapses_of_leases(self) -> dict[str, list[Period]]:
        """By host: the times in which its lease had run out."""
        lapses: dict[str, list[Period]] = defaultdict(list)
        until: dict[str, float] = {}
        for event in self._events:
            if isinstance(event, LeaseRenewed) and event.lease_ms:
                host = _host(event.node)
                if event.time > until.get(host, math.inf):
                    lapses[host].append((until[host], event.time))
                until[host] = max(until.get(host, 0.0), event.sent_at + event.lease_ms / 1000)
        return lapses

    def _faults_of_coordinators(self) -> Iterator[Period]:
        """Those of a minority matter until another one has taken over, and so does the loss of one."""
        found = [(one, self._coordinators_hit(one)) for one in self.faults]
        for one, hosts in found:
            if hosts:
                together = {
                    host for other, hit in found if other.begin <= one.end and one.begin <= other.end for host in hit
                }
                is_taken_over = one.name in LOSSES or 2 * len(together) < len(self._coordinators)
                yield (one.begin, one.begin + TAKEOVER_S if is_taken_over else one.end)

    def _coordinators_hit(self, fault: Impairment) -> set[str]:
        if fault.name.startswith(OF_ETCD) and not fault.hosts:
            return self._coordinators
        return self._coordinators & {*fault.hosts}

    def _of_hosts(self, hosts: Hosts, way: Way) -> Iterator[Period]:
        """What disturbs a way while these hosts are on it."""
        yield (hosts.begin, hosts.begin)
        periods = [(fault.begin, self._end_of(fault, way)) for fault in self.faults if _hits(fault, hosts, way)]
        for host, lapses in self._lapses.items():
            if hosts.are_on(way, host):
                periods.extend(lapses)
        for begin, end in periods:
            if begin < hosts.end and end >= hosts.begin:
                yield (max(begin, hosts.begin), self._settled(way, min(end, hosts.end)))

    def _end_of(self, fault: Impairment, way: Way) -> float:
        """When the fault's hosts work again."""
        if fault.name not in KILLING or way.gateway not in fault.hosts:
            return fault.end
        times = self._registered[way.gateway]
        return next((time for time in times if fault.end <= time <= fault.end + REGISTERED_WITHIN_S), fault.end)

    def _settled(self, way: Way, end: float) -> float:
        """When the way of a member works again after a disturbance, if not earlier."""
        got = self._delivered[way.place, way.member, way.gateway]
        return min([end + SETTLING_S, *(time for sent_at, time in got if sent_at > end)])

    # Who is on the way

    def _hosts(self, place: Place) -> Iterator[Hosts]:
        leaders, owners = self._leaders(place), self._owners(place)
        bounds = sorted({holder.since for holder in (*leaders, *owners)})
        for begin, end in pairwise([*bounds, math.inf]):
            yield Hosts(begin, end, _holder_at(leaders, begin), _holder_at(owners, begin))

    def _leaders(self, place: Place) -> list[Holder]:
        found = [Holder(0.0, "")]
        for event in self._events:
            if isinstance(event, PartitionTaken) and event.partition == place[1] and event.group in ("", place[0]):
                found.append(Holder(event.time, ""))
            elif isinstance(event, LeaderSeen) and event.partition == place[1]:
                found.append(Holder(event.time, event.leader))
            elif isinstance(event, StateLoaded | Acquired) and (event.group, event.partition) == place:
                leader = _host(event.leader)
                if event.arrived_at >= found[-1].since and leader != found[-1].host:
                    found.append(Holder(event.time, leader))
        return found

    def _owners(self, place: Place) -> list[Holder]:
        found = [Holder(0.0, "")]
        epochs: dict[int, int] = {}
        state_partition = self._state_partitions.get(place)
        for event in self._events:
            if isinstance(event, StateOwnersSeen):
                for number, epoch in event.owner_epochs:
                    known = epochs.setdefault(number, epoch)
                    epochs[number] = max(known, epoch)
                    if epoch > known and state_partition in (None, number):
                        found.append(Holder(event.time, ""))
            elif isinstance(event, StateLoaded | StateWritten) and (event.group, event.partition) == place:
                owner = _host(event.share_coordinator)
                if event.sent_at >= found[-1].since and owner != found[-1].host:
                    found.append(Holder(event.time, owner))
        return found

    def _loaded(self, place: Place) -> list[Period]:
        """The times in which a leader had the share-partition's state."""
        found: list[Period] = []
        begin, leader = math.inf, ""
        for event in self._events:
            if isinstance(event, StateLoaded) and (event.group, event.partition) == place:
                if event.leader != leader:
                    found.append((begin, event.time))
                    begin, leader = event.time, event.leader
                begin = min(begin, event.time)
            elif begin < math.inf and _gives_up(event, place, leader):
                found.append((begin, event.time))
                begin = math.inf
        return [(first, last) for first, last in [*found, (begin, math.inf)] if first < last]


def _gives_up(event: Event, place: Place, leader: str) -> bool:
    """Whether a leader may have to load the share-partition's state again."""
    if isinstance(event, PartitionTaken | StateWriteUnconfirmed):
        return event.partition == place[1] and event.group in ("", place[0]) and event.leader in ("", leader)
    return isinstance(event, FaultEvent) and _host(leader) in event.hosts and event.name != "sees other nodes"


def _hits(fault: Impairment, hosts: Hosts, way: Way) -> bool:
    if not fault.hosts:
        return not fault.name.startswith(OF_ETCD)
    hit = [host for host in fault.hosts if hosts.are_on(way, host)]
    return len(hit) == len(fault.hosts) if fault.name in OF_LINKS else bool(hit)


def _holder_at(holders: Sequence[Holder], time: float) -> str:
    """The newest of them; the first one began at 0."""
    return [holder.host for holder in holders if holder.since <= time][-1]


def ways(evidence: Evidence) -> list[Way]:
    """What each member fetched where, and for how long."""
    found: list[Way] = []
    current: dict[tuple[str, str], dict[tuple[int, str], float]] = defaultdict(dict)
    last = evidence.events[-1].time if evidence.events else 0.0
    for event in evidence.events:
        if not isinstance(event, FetchesFrom):
            continue
        known = current[event.group, event.member]
        for partition, gateway in [one for one in known if one not in event.places]:
            begin = known.pop((partition, gateway))
            found.append(Way((event.group, partition), event.member, gateway, begin, event.time))
        for one in event.places:
            known.setdefault(one, event.time)
    for (group, member), known in current.items():
        found.extend(Way((group, index), member, gateway, begin, last) for (index, gateway), begin in known.items())
    return found


def between(period: Period, others: Iterable[Period]) -> Iterator[Period]:
    """The parts of a period between all others."""
    begin, end = period
    for first, last in sorted(others):
        if first >= end:
            break
        if first > begin:
            yield (begin, first)
        begin = max(begin, last)
    if begin < end:
        yield (begin, end)


def _host(life: str) -> str:
    """The host of one life of a node."""
    return life.partition("#")[0]


def _role(host: str) -> str:
    return host.rpartition("-")[0]
