"""The group configs that a share-partition needs, with the broker configs as defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kshare_core.configs import Configs
from kshare_core.configs.group import effective_group_config, known_group_texts
from kshare_leader.machine.group_limits import GroupLimits
from kshare_rpc.catalog import CatalogView

_NO_TEXTS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Values of the group configs (`share.…`) under Kafka's names."""

    limits: GroupLimits
    auto_offset_reset: str
    read_committed: bool
    dead_letter_topic: str
    """errors.deadletterqueue.topic.name; empty: records that are given up are archived at once."""
    copy_dead_letters: bool


class GroupSettingsSource:
    """The settings of each group by the newest view, computed again only when the group's configs change."""

    def __init__(self, *, view: Callable[[], CatalogView], configs: Configs, report: Callable[[str], None]) -> None:
        self._view = view
        self._configs = configs
        self._report = report
        self._known: dict[str, tuple[Mapping[str, str], GroupSettings]] = {}
        self._default = self._work_out("", _NO_TEXTS)

    def of(self, group_id: str) -> GroupSettings:
        texts = self._view().group_configs.get(group_id)
        if texts is None:
            return self._default
        known = self._known.get(group_id)
        if known is None or known[0] is not texts:
            known = self._known[group_id] = (texts, self._work_out(group_id, texts))
        return known[1]

    def forget_deleted(self, view: CatalogView) -> None:
        """Drops the cached settings of groups that have no configs any more."""
        for group_id in [group_id for group_id in self._known if group_id not in view.group_configs]:
            del self._known[group_id]

    def _valid(self, group_id: str, texts: Mapping[str, str]) -> Mapping[str, str]:
        """What this version knows; the rest is reported."""
        known, problems = known_group_texts(self._configs, texts)
        for problem in problems:
            self._report(f"group {group_id!r} has an invalid config and gets the default for it: {problem}")
        return known

    def _work_out(self, group_id: str, texts: Mapping[str, str]) -> GroupSettings:
        values = effective_group_config(self._configs, self._valid(group_id, texts))
        dead_letter_topic = values.text("errors.deadletterqueue.topic.name")
        limits = GroupLimits(
            lock_duration_ms=values.integer("share.record.lock.duration.ms"),
            delivery_count_limit=values.integer("share.delivery.count.limit"),
            max_record_locks=values.integer("share.partition.max.record.locks"),
            renew_enabled=values.boolean("share.renew.acknowledge.enable"),
            dead_letters=bool(dead_letter_topic),
        )
        return GroupSettings(
            limits=limits,
            auto_offset_reset=values.text("share.auto.offset.reset"),
            read_committed=values.text("share.isolation.level") == "read_committed",
            dead_letter_topic=dead_letter_topic,
            copy_dead_letters=values.boolean("errors.deadletterqueue.copy.record.enable"),
        )
