"""The settings of a group whose configs another version has stored."""

from __future__ import annotations

from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_leader.share.group_settings import GroupSettingsSource
from kshare_rpc.catalog import CatalogView


def test_a_config_that_this_version_does_not_know_leaves_the_others_in_force() -> None:
    texts = {
        "share.of.a.newer.version": "1",
        "share.isolation.level": "read_committed",
        "share.delivery.count.limit": "no number",
        "errors.deadletterqueue.topic.name": "letters",
    }
    reports: list[str] = []
    view = CatalogView(version=1, group_configs={"group": texts})
    source = GroupSettingsSource(view=lambda: view, configs=Configs(PROCESS_CONFIGS), report=reports.append)
    settings = source.of("group")
    assert (settings.read_committed, settings.dead_letter_topic) == (True, "letters")
    assert settings.limits.delivery_count_limit == source.of("other").limits.delivery_count_limit
    assert len(reports) == 2 and "share.of.a.newer.version" in reports[0] and "no number" in reports[1]
    assert source.of("group") is settings and len(reports) == 2, "told once"
