"""MirrorTopics: the catalog takes over topics of the existing cluster, with the cluster's ids and partition counts.

A topic that the catalog does not have is added, one with more partitions grows, and one that is gone is removed with
all that groups know of it. A topic with another id is another topic: the one that had the name before is removed. What
share groups make of it is what CreateTopics, CreatePartitions and DeleteTopics make of it in the embedded engine.

A cluster before Kafka 2.8 has no topic ids. Its topics keep the id that the catalog invented for them; a topic of such
a cluster that is deleted and made again between two polls is taken for the same one.

An upgrade of the cluster gives ids to topics that exist. Share groups keep their state under the invented id, and the
first id that the cluster shows is recorded beside it (`upstream_topic_id`). From then on another id is another topic.

Records of older versions do not tell whether an id was invented. The older version replaced invented ids as soon as the
cluster had others, so a catalog has only one of the two kinds. If one topic proves to have the cluster's id, all had,
and an id that changed is another topic, also one that is seen later. Without this proof the state is kept.

The id of the first cluster is kept. Topics of another cluster are refused: its offsets mean other records, and topics
that it lacks would be removed with the state of their groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget
from kshare_coordinator.machine.catalog.nodes import next_epoch, next_version
from kshare_coordinator.machine.catalog.placement import LeastLoaded, new_partition_leaders, placements
from kshare_coordinator.machine.commands import CatalogChanged, Effect, MirroredTopic, MirrorTopics
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.draft import TopicLookup
from kshare_coordinator.machine.groups.share.heartbeats import decide_topics_changed
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.offsets.commits import records_at_topic_deletion
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.topic_names import OF_ROLES
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import ZERO_TOPIC_ID
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision


@dataclass(slots=True)
class _Draft:
    """The changes of one command."""

    leaders: LeastLoaded
    placement_epoch: int
    budget: CatalogBudget
    room: int
    """Partitions that the catalog may still get."""
    changed: dict[str, records_pb.TopicRecord] = field(default_factory=dict)
    gone: dict[str, bytes] = field(default_factory=dict)
    """Ids of removed topics by name; the name may be that of a changed topic, too."""
    refused: dict[str, str] = field(default_factory=dict)


def is_mirrored(state: CoordinatorState, topic: MirroredTopic) -> bool:
    """Whether the catalog has the topic as it is in the cluster."""
    known = state.topic_named(topic.name)
    return (
        known is not None
        and len(known.placements) >= topic.partition_count
        and known.upstream_topic_id == _upstream_topic_id(known, topic)
    )


def ids_that_end(state: CoordinatorState, topics: Sequence[MirroredTopic], gone: Sequence[str]) -> list[bytes]:
    """The cluster's ids of topics that `MirrorTopics` removes, or whose names other topics get."""
    replaced = [known.name for known in _replaced(state, topics)]
    found = [state.topic_named(name) for name in (*gone, *replaced)]
    ids = [known.upstream_topic_id or known.topic_id for known in found if known is not None]
    return [topic_id for topic_id in ids if topic_id != ZERO_TOPIC_ID]


def topics_with_other_ids(state: CoordinatorState) -> list[records_pb.TopicRecord]:
    """Topics whose id in the cluster is not that of the catalog."""
    return [
        topic for topic in state.topics.values() if topic.upstream_topic_id not in (b"", ZERO_TOPIC_ID, topic.topic_id)
    ]


def is_other_cluster(state: CoordinatorState, cluster_id: str) -> bool:
    """Whether the topics of the catalog belong to another cluster; a cluster that does not tell its id is taken."""
    return bool(cluster_id) and state.texts.get(records.UPSTREAM_CLUSTER_ID, cluster_id) != cluster_id


def _replaced(state: CoordinatorState, topics: Sequence[MirroredTopic]) -> list[records_pb.TopicRecord]:
    """The topics of the catalog whose names other topics have now."""
    has_proof = records.UPSTREAM_IDS_PROVEN in state.numbers or _prove(state, topics)
    found = []
    for known, topic in _known_with_ids(state, topics):
        upstream_topic_id = known.upstream_topic_id or (known.topic_id if has_proof else ZERO_TOPIC_ID)
        if upstream_topic_id not in (ZERO_TOPIC_ID, topic.topic_id):
            found.append(known)
    return found


def _prove(state: CoordinatorState, topics: Sequence[MirroredTopic]) -> bool:
    """Whether one of the topics proves that the ids in records of an older version were not invented."""
    pairs = _known_with_ids(state, topics)
    return any(not known.upstream_topic_id and known.topic_id == each.topic_id for known, each in pairs)


def _known_with_ids(
    state: CoordinatorState, topics: Sequence[MirroredTopic]
) -> list[tuple[records_pb.TopicRecord, MirroredTopic]]:
    """The topics of the catalog of the same names, where the cluster shows an id."""
    return [(known, each) for each in topics if each.has_own_id and (known := state.topic_named(each.name))]


def _upstream_topic_id(known: records_pb.TopicRecord, topic: MirroredTopic) -> bytes:
    """The id to record; a broker that shows no ids does not undo one that was seen."""
    if topic.has_own_id:
        return topic.topic_id
    return known.upstream_topic_id or ZERO_TOPIC_ID


@decides(MirrorTopics)
def decide_mirror_topics(
    state: CoordinatorState, command: MirrorTopics, configs: Configs, groups: GroupSettings, now_ms: int
) -> Decision[Record, dict[str, str], Effect]:
    """The response has the topics for which the catalog has no room, with the reason."""
    found = _check_cluster(state, command.cluster_id)
    draft = _Draft(
        leaders=new_partition_leaders(state),
        placement_epoch=next_epoch(state),
        budget=CatalogBudget(state, configs),
        room=configs.integer("kshare.max.partitions") - state.partition_count,
    )
    for name in command.gone:
        known = state.topic_named(name)
        if known is not None:
            _remove(draft, known)
    for known in _replaced(state, command.topics):
        _remove(draft, known)
    if records.UPSTREAM_IDS_PROVEN not in state.numbers and _prove(state, command.topics):
        found = [*found, records.cluster_number(records.UPSTREAM_IDS_PROVEN, 1)]
    for topic in command.topics:
        if not is_mirrored(state, topic):
            _mirror(state, draft, topic)
    if not draft.changed and not draft.gone:
        found = [*found, next_version(state)] if found else []
        return Decision(found, draft.refused, (CatalogChanged(nodes=False),) if found else ())
    group_records, effects = decide_topics_changed(
        state, _lookup(state, draft), [*draft.changed, *draft.gone], list(draft.gone.values()), groups, now_ms
    )
    found.append(records.cluster_number(records.EPOCH_COUNTER, draft.placement_epoch))
    found += map(records.topic_gone, draft.gone.values())  # first: a new topic may have the name of a removed one
    found += records_at_topic_deletion(state, list(draft.gone.values()))
    found += map(records.topic, draft.changed.values())
    found += [*group_records, next_version(state)]
    return Decision(found, draft.refused, [CatalogChanged(nodes=False), *effects])


def _check_cluster(state: CoordinatorState, cluster_id: str) -> list[Record]:
    """The record that keeps the id of the first cluster; KafkaError INVALID_REQUEST for another one."""
    known = state.texts.get(records.UPSTREAM_CLUSTER_ID, "")
    if is_other_cluster(state, cluster_id):
        text = (
            f"The brokers at kshare.upstream.bootstrap.servers belong to cluster {cluster_id}, and the groups here "
            f"to cluster {known}. Correct the addresses, or use an empty metadata store for the other cluster"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if known or not cluster_id:
        return []
    return [records.cluster_text(records.UPSTREAM_CLUSTER_ID, cluster_id)]


def _mirror(state: CoordinatorState, draft: _Draft, topic: MirroredTopic) -> None:
    known = None if topic.name in draft.gone else state.topic_named(topic.name)
    has = len(known.placements) if known else 0
    record = records_pb.TopicRecord(topic_id=topic.topic_id, name=topic.name, internal=topic.name in OF_ROLES)
    if known is not None:
        record.CopyFrom(known)
    record.upstream_topic_id = _upstream_topic_id(record, topic)
    added = max(0, topic.partition_count - has)
    try:
        _check_room(draft, added)
        for placement in placements(draft.leaders, added, draft.placement_epoch):
            placement.partition += has
            record.placements.append(placement)
        if known is None or added:  # an id is recorded in a full catalog, too
            draft.budget.take(known.ByteSize() if known else 0, record.ByteSize())
    except KafkaError as error:
        draft.refused[topic.name] = error.message
        return
    draft.room -= added
    draft.changed[topic.name] = record


def _remove(draft: _Draft, known: records_pb.TopicRecord) -> None:
    draft.gone[known.name] = known.topic_id
    draft.room += len(known.placements)


def _check_room(draft: _Draft, added: int) -> None:
    if added and added > draft.room:
        text = f"it would add {added} partitions, and kshare.max.partitions leaves room for {max(0, draft.room)}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)


def _lookup(state: CoordinatorState, draft: _Draft) -> TopicLookup:
    """Topics as they are after the change."""

    def lookup(name: str) -> tuple[bytes, int] | None:
        topic = draft.changed.get(name) or (None if name in draft.gone else state.topic_named(name))
        return None if topic is None else (topic.topic_id, len(topic.placements))

    return lookup
