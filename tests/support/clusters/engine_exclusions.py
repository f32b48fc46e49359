"""What of the end-to-end tests cannot apply to the kafka engine, each with its reason.

A row is the beginning of a test's id, and says for which engines it is left out. Tests of a list of allowed engines
run on every other one.
"""

from __future__ import annotations

from typing import NamedTuple

from support.clusters.engines import TestEngine

BOTH = (TestEngine.KAFKA_PROXY, TestEngine.KAFKA_SHARE)
SHARE = (TestEngine.KAFKA_SHARE,)
ON_DISK = "records and state are on no disk of kshare's"
OF_THE_CLUSTER = "the cluster answers, not kshare"
METADATA_THERE = "kshare attach keeps the metadata of coordinators in the cluster (test_coordinators_in_kafka)"
NOT_SERVED = "mode share serves share consumers only"


class Exclusion(NamedTuple):
    """Tests whose ids begin with `test`, and why they are left out with these engines."""

    test: str
    engines: tuple[TestEngine, ...]
    reason: str


EXCLUSIONS = (
    Exclusion("tests/e2e/failures/test_failing_disk.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/failures/test_lost_leader_disk.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/failures/test_lost_nodes.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/failures/test_share_coordinator_damage.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/cluster/test_share_coordinator_start.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/cluster/test_several_coordinators.py", BOTH, METADATA_THERE),
    Exclusion(
        "tests/e2e/share/test_dead_letters.py::test_a_group_cannot_be_pointed_at_a_topic_that_may_not_receive",
        BOTH,
        "the topics of a cluster may receive dead letters unless kshare is told otherwise",
    ),
    Exclusion(
        "tests/e2e/share/test_delivery_history.py::test_clients_change_nothing_but_its_configs",
        BOTH,
        "the cluster's ACLs say who may write, grow or delete the history's topic there",
    ),
    Exclusion("tests/e2e/records/test_log_housekeeping.py", BOTH, OF_THE_CLUSTER),
    Exclusion("tests/e2e/records/test_produced_batches_like_kafka.py", BOTH, OF_THE_CLUSTER),
    Exclusion("tests/e2e/attacks/test_hostile_batches.py", BOTH, OF_THE_CLUSTER),
    Exclusion("tests/e2e/groups/test_", BOTH, OF_THE_CLUSTER),
    Exclusion("tests/e2e/offsets/", SHARE, NOT_SERVED),
    Exclusion("tests/e2e/transactions/", SHARE, NOT_SERVED),
)


def reason_of(test_id: str, engine: TestEngine) -> str | None:
    """Why a test is left out with an engine; None if it applies."""
    for exclusion in EXCLUSIONS:
        if engine in exclusion.engines and test_id.startswith(exclusion.test):
            return exclusion.reason
    return None
