"""`kshare migrate`: one look at both places, what is missing done, and what is next in words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer
from rich.console import Console

from kshare.commands.offsets import NamedPartition
from kshare.commands.resource_configs import GROUP, TOPIC, alter_configs
from kshare.endpoint import Endpoint
from kshare.failure import CommandFailed
from kshare.migrate.groups import RESET, GroupPlan, Stage, read_new_groups, read_old_groups, share_groups
from kshare.migrate.topics import NewTopics, TopicPlan, count_records, read_topics, wait_until_served
from kshare.output import Listing, Row, show

LOOK_INTERVAL_S = 2.0
NOT_COPIED = (
    "not copied: records, states and offsets of groups (offsets differ), committed offsets of other groups, "
    "ACLs, users, quotas, configs of brokers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The options of the command. `kshare` is None while no kshare is attached to the new cluster."""

    old: Endpoint
    new: Endpoint
    kshare: Endpoint | None
    topics: Sequence[str]
    groups: Sequence[str]
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one look found; `old_lengths` and `new_records` are lengths of logs in offsets."""

    topics: Sequence[TopicPlan]
    groups: Sequence[GroupPlan]
    old_lengths: Mapping[NamedPartition, int]
    new_records: Mapping[str, int]

    @property
    def is_drained(self) -> bool:
        return all(group.stage is not Stage.DRAINING for group in self.groups)

    @property
    def problems(self) -> list[str]:
        return [topic.problem for topic in self.topics if topic.problem is not None]


def run_migration(migration: Migration, console: Console, *, only_look: bool, wait: bool, as_json: bool) -> None:
    """Does what is missing (nothing with `only_look`), and shows the result; `wait`: once groups are drained.

    CommandFailed after that if a topic of the new cluster has another number of partitions.
    """
    standing = look(migration)
    if not only_look and not standing.problems:
        done = _do_what_is_missing(migration, standing)
        if not as_json:
            for line in done:
                typer.echo(line)
        standing = look(migration)
    if wait:
        standing = _drained(migration, standing)
    _show(migration, standing, console, as_json=as_json)
    if standing.problems:
        raise CommandFailed(f"{standing.problems[0]}; nothing was changed")


def look(migration: Migration) -> Standing:
    """Both places as they are now; changes nothing. CommandFailed."""
    old_topics = read_topics(migration.old, migration.topics)
    topics = NewTopics(migration.new, migration.replicas).plan(old_topics)
    lengths = count_records(migration.old, {topic.name: topic.partitions for topic in old_topics})
    group_ids = share_groups(migration.old, migration.groups)
    found = read_new_groups(migration.kshare, group_ids) if migration.kshare is not None else {}
    new_lengths = count_records(migration.new, {topic.name: topic.found_partitions for topic in topics})
    return Standing(
        topics=topics,
        groups=[
            GroupPlan(group, found.get(group.group_id)) for group in read_old_groups(migration.old, group_ids, lengths)
        ],
        old_lengths=lengths,
        new_records={
            topic.name: sum(count for (name, _), count in new_lengths.items() if name == topic.name) for topic in topics
        },
    )


def _do_what_is_missing(migration: Migration, standing: Standing) -> list[str]:
    """Topics first, then configs; a line for each that was done. Interrupted anywhere, the next run continues."""
    done = []
    new_topics = NewTopics(migration.new, migration.replicas)
    for topic in standing.topics:
        if topic.is_missing:
            new_topics.create(topic)
            done.append(f"created topic {topic.name}: {_described(topic, new_topics.replicas)}")
    wait_until_served(migration.new, {topic.name: topic.partitions for topic in standing.topics if topic.is_missing})
    if migration.kshare is None:
        return done
    for topic in standing.topics:
        if topic.kept_by_kshare:
            alter_configs(migration.kshare, TOPIC, topic.name, topic.kept_by_kshare)
    for group in standing.groups:
        if group.changes:
            alter_configs(migration.kshare, GROUP, group.old.group_id, group.changes)
            done.append(f"set configs of group {group.old.group_id}: {_texts(group.changes)}")
    return done


def _drained(migration: Migration, standing: Standing) -> Standing:
    """The first look that finds nothing left, and no record appended at the old place since the look before."""
    shown = None
    while True:
        before = standing
        time.sleep(LOOK_INTERVAL_S)
        standing = look(migration)
        if standing.is_drained and standing.old_lengths == before.old_lengths:
            return standing
        left = "; ".join(_left(group) for group in standing.groups if group.stage is Stage.DRAINING)
        text = f"waiting: {left or 'records are still produced at the old place'}"
        if text != shown:
            typer.echo(text, err=True)
            shown = text


def _left(group: GroupPlan) -> str:
    left = "an unknown number of" if group.old.left is None else group.old.left
    members = f"{group.old.members} member{'' if group.old.members == 1 else 's'}"
    return f"group {group.old.group_id} has {left} records left, and {members}"


def _show(migration: Migration, standing: Standing, console: Console, *, as_json: bool) -> None:
    topics: list[Row] = [
        {
            "topic": topic.name,
            "partitions": topic.partitions,
            "at_new": "missing" if topic.is_missing else "there" if topic.problem is None else "differs",
            "old_records": sum(count for (name, _), count in standing.old_lengths.items() if name == topic.name),
            "new_records": standing.new_records[topic.name],
            "configs": _texts({**topic.configs, **topic.kept_by_kshare}) or None,
            "left_out": _texts(topic.left_out) or None,
        }
        for topic in standing.topics
    ]
    groups: list[Row] = [
        {
            "group": group.old.group_id,
            "stage": group.stage.value,
            "left": group.old.left,
            "old_members": group.old.members,
            "new_members": None if group.new is None else group.new.members,
            "configs_to_set": _texts(group.changes) or None,
        }
        for group in standing.groups
    ]
    topic_headings = {
        "topic": "topic",
        "partitions": "partitions",
        "at_new": "at the new place",
        "old_records": "offsets, old",
        "new_records": "offsets, new",
    }
    if any(topic.is_missing for topic in standing.topics):
        topic_headings |= {"configs": "configs", "left_out": "left out"}
    group_headings = {
        "group": "group",
        "stage": "stage",
        "left": "records left",
        "old_members": "members, old",
        "new_members": "members, new",
        "configs_to_set": "configs to set",
    }
    next_steps = next_of(migration, standing)
    listings = [Listing("topics", topic_headings, topics), Listing("groups", group_headings, groups)]
    if as_json:
        listings.append(Listing("next", {"step": "step"}, [{"step": step} for step in next_steps]))
    show(console, *listings, as_json=as_json)
    if not as_json:
        for step in [*next_steps, NOT_COPIED]:
            typer.echo(step)


def next_of(migration: Migration, standing: Standing) -> list[str]:
    """What is left to do, a sentence each, in its order."""
    old, new = migration.old.bootstrap, migration.new.bootstrap
    steps = []
    if any(topic.is_missing for topic in standing.topics):
        steps.append("next: run kshare migrate without --dry-run and --status; it creates the missing topics")
    if migration.kshare is None:
        steps.append(f"next: start kshare attach {new}, and run kshare migrate with --kshare and its address")
        return steps
    if any(group.changes for group in standing.groups):
        steps.append("next: run kshare migrate without --dry-run and --status before a consumer uses the new place")
    if steps:
        return steps
    draining = [group for group in standing.groups if group.stage is Stage.DRAINING]
    drained = [group.old.group_id for group in standing.groups if group.stage is Stage.DRAINED]
    if draining or drained:
        steps.append(f"next: let producers write to {new} and no longer to {old}, if they do not yet")
    if draining:
        steps.append(f"next: let consumers go on at {old}, until nothing is left (--wait waits for it):")
        steps += [f"    {_left(group)}" for group in draining]
    if drained:
        text = "they start at the first record there"
        steps.append(f"next: let the consumers of {', '.join(drained)} use {migration.kshare.bootstrap}; {text}")
    steps += [
        f"next: group {group.old.group_id} has started and no longer needs {RESET}=earliest; to have it as before: "
        f"kshare groups set {group.old.group_id} {RESET}={group.reset_to_give_back} "
        f"--bootstrap {migration.kshare.bootstrap}"
        for group in standing.groups
        if group.reset_to_give_back is not None
    ]
    return steps or [f"done: no share group needs {old} any more; it was left as it is"]


def _described(topic: TopicPlan, replicas: int) -> str:
    configs = f", {_texts(topic.configs)}" if topic.configs else ""
    left_out = f"; left out, since the cluster has no use for it: {_texts(topic.left_out)}" if topic.left_out else ""
    return f"{topic.partitions} partitions, {replicas} replicas{configs}{left_out}"


def _texts(configs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(configs.items()))
