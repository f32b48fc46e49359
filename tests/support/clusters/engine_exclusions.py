"""What of the end-to-end tests cannot apply to the kafka engine, each with its reason.

A row is the beginning of a test's id, and says for which engines it is left out, and for which releases of the cluster.
A test that has Apache Kafka 4.3.1 alone for its parameter runs with the embedded engine only: its result is the same
with each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from support.clusters.engines import TestEngine, release_of_upstream
from support.kafka.java import WITHOUT_SHARE_GROUPS

BOTH = (TestEngine.KAFKA_PROXY, TestEngine.KAFKA_SHARE)
SHARE = (TestEngine.KAFKA_SHARE,)
PROXY = (TestEngine.KAFKA_PROXY,)
ON_DISK = "records and state are on no disk of kshare's"
OF_THE_CLUSTER = "the cluster answers, not kshare"
METADATA_THERE = "kshare attach keeps the metadata of coordinators in the cluster (test_coordinators_in_kafka)"
NOT_SERVED = "mode share serves share consumers only"
AUTHENTICATED_THERE = "the cluster authenticates clients, and its ACLs decide: tests/e2e/attach/test_identity.py"
TLS_ENDS_HERE = "TLS ends at kshare, so a certificate cannot be who a client is at the cluster"
BROKERS_CONFIGS = "configs of brokers are the cluster's; kshare's own are those that it was started with"
PORTS_OF_BROKERS = "at each listener a broker of the cluster has a port of its own"
IDS_ARE_APART = "a share group and a group of the cluster may have the same id"
NO_KIP_848 = "Apache Kafka 3.9.1 has no consumer groups of KIP-848"
NO_KIP_890 = "producers get a new epoch with each transaction from transaction.version 2 on (Kafka 4.0)"
NO_PENDING_UPLOADS = "ListOffsets of Apache Kafka 3.9.1 does not know the offsets that wait for tiered storage"
NO_GROUP_CONFIGS = "configs of groups other than share.* are the cluster's, and Apache Kafka 3.9.1 has none"
FEATURES_THERE = "features are the cluster's, beside share.version"
VERSIONS_THERE = "versions of what is relayed are the cluster's (test_relaying)"
OLD = (WITHOUT_SHARE_GROUPS,)
NO_STATE_TOPIC = "share groups' state is in the cluster's topic __kshare_state; __share_group_state is not served"
KAFKA_ALONE = "kafka"
"""The parameter of a test that runs on kshare, and on Apache Kafka 4.3.1 for comparison."""
STATE_TOPIC = "tests/e2e/share/test_state_topic.py"
THROTTLED_THERE = "the cluster throttles, by means over its windows; it does not know of share fetches"
ADDRESSES = "the cluster sees the address of kshare only"
STORED_THERE = "the cluster stores what it accepts; compressed batches are checked before share groups get them"
BROKERS_WORK = "brokers open the batches that are produced, and finish requests of clients that have gone"
COMPARED = "what is relayed has the versions and errors of Apache Kafka 3.9.1, and this compares with 4.3.1"


class Exclusion(NamedTuple):
    """Tests whose ids begin with `test`, and why they are left out with these engines."""

    test: str
    engines: tuple[TestEngine, ...]
    reason: str
    releases: tuple[str, ...] | None = None
    """Those of the cluster behind kshare; None: all."""


TOPIC_TOOL = "tests/e2e/kafka_tools/test_topics.py"
CONSUMER_GROUP_TOOL = "tests/e2e/kafka_tools/test_consumer_groups.py"
GROUP_TOOL = "tests/e2e/kafka_tools/test_groups.py"
CLASSIC = "tests/e2e/groups/test_classic_like_kafka.py"
OFFSETS = "tests/e2e/offsets/test_committed_offsets.py"
QUOTAS_OF_CLIENTS = "tests/e2e/security/test_quotas.py"
PRODUCED = "tests/e2e/records/test_produced_batches_like_kafka.py"
HOSTILE = "tests/e2e/attacks/test_hostile_batches.py"

CLUSTER_TOOLS = "tests/e2e/kafka_tools/test_cluster.py"
CONFIGS_TOOL = "tests/e2e/kafka_tools/test_configs.py"
REFUSED_GROUP_CONFIGS = f"{CONFIGS_TOOL}::test_group_configs_that_are_refused"
CONSOLE_CLIENTS = "tests/e2e/kafka_tools/test_console_clients.py"
CONSOLE_SHARE_CONSUMER = "tests/e2e/kafka_tools/test_console_share_consumer.py"
VERIFIABLE_TOOLS = "tests/e2e/kafka_tools/test_verifiable_clients.py"
OFFSETS_TOOL = "tests/e2e/kafka_tools/test_get_offsets.py"

EXCLUSIONS = (
    Exclusion("tests/e2e/failures/test_failing_disk.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/failures/test_lost_leader_disk.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/failures/test_lost_nodes.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/failures/test_share_coordinator_damage.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/cluster/test_share_coordinator_start.py", BOTH, ON_DISK),
    Exclusion("tests/e2e/cluster/test_several_coordinators.py", BOTH, METADATA_THERE),
    Exclusion(f"{STATE_TOPIC}::test_a_plain_consumer_reads_what_the_state_is", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{STATE_TOPIC}::test_kafkas_console_consumer_prints_the_snapshot", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{STATE_TOPIC}::test_kafkas_tools_list_it_as_internal", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{STATE_TOPIC}::test_clients_change_nothing_of_it", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{STATE_TOPIC}::test_a_consumer_waits_for_the_next_record", BOTH, NO_STATE_TOPIC),
    Exclusion(
        f"{STATE_TOPIC}::test_the_topic_has_its_records_after_a_share_coordinator_was_killed", BOTH, NO_STATE_TOPIC
    ),
    Exclusion(
        "tests/e2e/share/test_delivery_history.py::test_clients_change_nothing_but_its_configs",
        BOTH,
        "the cluster's ACLs say who may write, grow or delete the history's topic there",
    ),
    Exclusion(
        "tests/e2e/share/test_heartbeats_like_kafka.py::test_a_group_of_another_type_takes_no_share_member",
        BOTH,
        "the cluster has the other groups, and a share group may have the id of one",
    ),
    Exclusion("tests/e2e/records/test_log_housekeeping.py", SHARE, OF_THE_CLUSTER),
    Exclusion(f"{PRODUCED}::test_what_kafka_stores_and_no_consumer_can_read_is_refused", PROXY, STORED_THERE),
    Exclusion(PRODUCED, SHARE, OF_THE_CLUSTER),
    Exclusion(f"{HOSTILE}::test_records_beside_a_malformed_batch_of_an_older_version_are_delivered", PROXY, ON_DISK),
    Exclusion(f"{HOSTILE}::test_a_good_client_beside_batches_of_millions_of_records", PROXY, BROKERS_WORK),
    Exclusion(HOSTILE, SHARE, OF_THE_CLUSTER),
    Exclusion("tests/e2e/attacks/test_gateway.py::test_arrays_of_200_000_elements", PROXY, BROKERS_WORK),
    Exclusion("tests/e2e/records/test_idempotent_producers.py", SHARE, OF_THE_CLUSTER),
    Exclusion("tests/e2e/admin/test_configs_like_kafka.py", BOTH, COMPARED, OLD),
    Exclusion("tests/e2e/admin/test_errors_like_kafka.py", BOTH, COMPARED, OLD),
    Exclusion("tests/e2e/admin/test_topic_errors_like_kafka.py", BOTH, COMPARED, OLD),
    Exclusion("tests/e2e/groups/test_admin_errors_like_kafka.py", PROXY, COMPARED, OLD),
    Exclusion("tests/e2e/security/test_acls_like_kafka.py", BOTH, AUTHENTICATED_THERE),
    Exclusion("tests/e2e/security/test_files_of_a_kafka_cluster.py", BOTH, AUTHENTICATED_THERE),
    Exclusion("tests/e2e/security/test_sasl.py", BOTH, AUTHENTICATED_THERE),
    Exclusion("tests/e2e/security/test_strangers_at_every_port.py", BOTH, AUTHENTICATED_THERE),
    Exclusion("tests/e2e/security/test_tls.py::test_a_client_certificate_is_required", BOTH, TLS_ENDS_HERE),
    Exclusion("tests/e2e/security/test_tls.py::test_each_listener_tells_its_own_addresses", PROXY, PORTS_OF_BROKERS),
    Exclusion(
        "tests/e2e/security/test_connection_limits.py::test_a_closed_connection_makes_room_and_a_changed_limit",
        PROXY,
        BROKERS_CONFIGS,
    ),
    Exclusion(f"{QUOTAS_OF_CLIENTS}::test_rates_hold_for_one_client_and_for_twenty", PROXY, THROTTLED_THERE),
    Exclusion(f"{QUOTAS_OF_CLIENTS}::test_connections_of_an_address_are_limited", PROXY, ADDRESSES),
    Exclusion(f"{CLUSTER_TOOLS}::test_a_gateway_is_not_unregistered", PROXY, OF_THE_CLUSTER),
    Exclusion(f"{CLUSTER_TOOLS}::test_features", PROXY, FEATURES_THERE),
    Exclusion(f"{CLUSTER_TOOLS}::test_api_versions_stay_within_kafkas", PROXY, VERSIONS_THERE),
    Exclusion(f"{CONFIGS_TOOL}::test_all_configs_of_a_broker", PROXY, BROKERS_CONFIGS),
    Exclusion(f"{CONFIGS_TOOL}::test_they_are_refused_with_an_error_that_clients_know", PROXY, OF_THE_CLUSTER),
    Exclusion(f"{CONFIGS_TOOL}::test_client_metrics", PROXY, OF_THE_CLUSTER),
    Exclusion(f"{REFUSED_GROUP_CONFIGS}[consumer.", PROXY, NO_GROUP_CONFIGS, OLD),
    Exclusion(f"{REFUSED_GROUP_CONFIGS}[nonsense=1]", PROXY, NO_GROUP_CONFIGS, OLD),
    Exclusion(f"{CONSOLE_CLIENTS}::test_internal_topics[", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{CONSOLE_SHARE_CONSUMER}::test_the_id_of_a_consumer_group", BOTH, IDS_ARE_APART),
    Exclusion(f"{VERIFIABLE_TOOLS}::test_consume[('--group-protocol', 'consumer')]", PROXY, NO_KIP_848, OLD),
    Exclusion(f"{OFFSETS_TOOL}::test_times[-6", PROXY, NO_PENDING_UPLOADS, OLD),
    Exclusion(f"{OFFSETS_TOOL}::test_times[earliest-pending-upload", PROXY, NO_PENDING_UPLOADS, OLD),
    Exclusion(f"{TOPIC_TOOL}::test_create_what_is_there", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{TOPIC_TOOL}::test_list_the_state_of_share_groups", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{TOPIC_TOOL}::test_describe_internal_topics", BOTH, NO_STATE_TOPIC),
    Exclusion(f"{CONSUMER_GROUP_TOOL}::test_share_groups_are_no_consumer_groups", BOTH, IDS_ARE_APART),
    Exclusion(f"{GROUP_TOOL}::test_a_group_of_another_type_is_no_streams_group", PROXY, NO_KIP_848, OLD),
    Exclusion(f"{CLASSIC}::test_offsets_of_members", PROXY, COMPARED, OLD),
    Exclusion(f"{CLASSIC}::test_groups_are_described_listed_and_deleted", PROXY, COMPARED, OLD),
    Exclusion(f"{CLASSIC}::test_the_id_of_a_share_group", PROXY, IDS_ARE_APART),
    Exclusion("tests/e2e/groups/test_consumer_groups.py", PROXY, NO_KIP_848, OLD),
    Exclusion("tests/e2e/groups/test_consumer_heartbeats_like_kafka.py", PROXY, NO_KIP_848, OLD),
    Exclusion("tests/e2e/groups/test_migration", PROXY, NO_KIP_848, OLD),
    Exclusion(f"{OFFSETS}::test_a_share_group_commits_no_offsets[kshare]", PROXY, IDS_ARE_APART),
    Exclusion(f"{OFFSETS}::test_a_group_with_committed_offsets_is_no_share_group[kshare]", PROXY, IDS_ARE_APART),
    Exclusion(f"{OFFSETS}::test_a_share_groups_offsets_cannot_be_part_of_a_transaction[kshare]", PROXY, IDS_ARE_APART),
    Exclusion(
        "tests/e2e/transactions/test_transactions.py::test_a_java_producer_gets_a_new_epoch_with_each_transaction",
        PROXY,
        NO_KIP_890,
    ),
    Exclusion("tests/e2e/groups/", SHARE, NOT_SERVED),
    Exclusion("tests/e2e/offsets/", SHARE, NOT_SERVED),
    Exclusion("tests/e2e/transactions/", SHARE, NOT_SERVED),
)


def reason_of(test_id: str, parameters: Collection[object], engine: TestEngine) -> str | None:
    """Why a test is left out with an engine; None if it applies."""
    release = release_of_upstream()
    if engine is not TestEngine.EMBEDDED and KAFKA_ALONE in parameters:
        return "kshare has no part in it"
    for exclusion in EXCLUSIONS:
        concerns = engine in exclusion.engines and release in (exclusion.releases or (release,))
        if concerns and test_id.startswith(exclusion.test):
            return exclusion.reason
    return None
