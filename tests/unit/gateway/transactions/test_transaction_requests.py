"""The transaction APIs through real bytes, in every version: calls to the coordinator, and responses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run, versions_of

PRODUCER = {"producer_id": 4000, "producer_epoch": 3}
FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The first version whose clients know PRODUCER_FENCED (the comments of Kafka's message definitions)."""
FENCED_VERSIONS = [(api_key, version) for api_key in FENCED_SINCE for version in versions_of(api_key)]
NAMES = {
    ApiKey.INIT_PRODUCER_ID: "InitProducerId",
    ApiKey.ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxn",
    ApiKey.ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    ApiKey.END_TXN: "EndTxn",
}


def values_of(api_key: ApiKey, version: int) -> dict[str, Any]:
    """A request of one transaction, with the two partitions where it names some."""
    topics = [{"name": "orders", "partitions": [0, 1]}]
    whose = {"transactional_id": "t", **PRODUCER}
    match api_key:
        case ApiKey.INIT_PRODUCER_ID:
            return {"transactional_id": "t", "transaction_timeout": 1000, **(PRODUCER if version >= 3 else {})}
        case ApiKey.ADD_PARTITIONS_TO_TXN if version >= 4:
            return {"transactions": [{**whose, "verify_only": True, "topics": topics}]}
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return {f"v3_and_below_{name}": value for name, value in {**whose, "topics": topics}.items()}
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return {**whose, "group_id": "g"}
        case ApiKey.END_TXN:
            return {**whose, "committed": True}
        case _:
            return {}


def answer_with(api_key: ApiKey, code: int) -> Any:
    match api_key:
        case ApiKey.INIT_PRODUCER_ID:
            return pb.InitProducerIdResponse(error_code=code, producer_id=4000, producer_epoch=4)
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            answer = pb.AddPartitionsToTxnResponse()
            result = answer.results.add(transactional_id="t")
            for partition in (0, 1):
                result.partitions.add(topic_name="orders", partition=partition, error_code=code)
            return answer
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return pb.AddOffsetsToTxnResponse(error_code=code)
        case _:
            return pb.EndTxnResponse(error_code=code, producer_id=4000, producer_epoch=4)


def same(answer: Any, request: Any, payload: memoryview) -> Any:
    return answer


def codes_of(api_key: ApiKey, version: int, answer: Any) -> set[int]:
    if api_key is not ApiKey.ADD_PARTITIONS_TO_TXN:
        return {int(answer.error_code)}
    topics = answer.results_by_topic_v3_and_below if version < 4 else answer.results_by_transaction[0].topic_results
    assert [(topic.name, [each.partition_index for each in topic.results_by_partition]) for topic in topics] == [
        ("orders", [0, 1])
    ]
    return {int(each.partition_error_code) for topic in topics for each in topic.results_by_partition}


@pytest.mark.parametrize(("api_key", "version"), FENCED_VERSIONS)
def test_a_fenced_producer_is_told_so_in_the_code_that_its_version_knows(api_key: ApiKey, version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        codes = [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        known = version >= FENCED_SINCE[api_key]
        told = [codes[0], ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH, codes[2]]
        client = harness.client()
        for code, expected in zip(codes, told, strict=True):
            scripted = answer_with(api_key, code)
            harness.catalog.answers[NAMES[api_key]] = partial(same, scripted)
            answer = await client.ask(api_key, version, **values_of(api_key, version))
            assert codes_of(api_key, version, answer) == {expected}

    run(scenario)


@pytest.mark.parametrize(("api_key", "version"), FENCED_VERSIONS)
def test_without_an_answer_of_the_coordinator_clients_try_again(api_key: ApiKey, version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(api_key, version, **values_of(api_key, version))
        if api_key is ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4:
            assert (int(answer.error_code), answer.results_by_transaction) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ())
        else:
            assert codes_of(api_key, version, answer) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["InitProducerId"] = lambda r, p: answer_with(ApiKey.INIT_PRODUCER_ID, 0)
        client = harness.client()
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, version, **values_of(ApiKey.INIT_PRODUCER_ID, version))
        assert (int(answer.error_code), answer.producer_id, answer.producer_epoch) == (0, 4000, 4)
        await client.ask(ApiKey.INIT_PRODUCER_ID, version)
        transactional, plain = harness.catalog.requests("InitProducerId")
        assert (transactional.has_transactional_id, transactional.transactional_id) == (True, "t")
        assert transactional.transaction_timeout_ms == 1000
        named = (transactional.producer_id, transactional.producer_epoch)
        assert named == ((4000, 3) if version >= 3 else (-1, -1))
        assert (plain.has_transactional_id, plain.producer_id, plain.producer_epoch) == (False, -1, -1)
        if version >= 3:
            for half in ({"producer_id": 4000}, {"producer_epoch": 3}):
                answer = await client.ask(ApiKey.INIT_PRODUCER_ID, version, **half)
                assert (int(answer.error_code), answer.producer_id) == (ErrorCode.INVALID_REQUEST, -1)

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_add_partitions_to_txn(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def answer(request: Any, payload: memoryview) -> Any:
            results = pb.AddPartitionsToTxnResponse()
            for transaction in request.transactions:
                result = results.results.add(transactional_id=transaction.transactional_id)
                for topic in transaction.topics:
                    for partition in topic.partitions:
                        code = ErrorCode.NONE if partition == 0 else ErrorCode.TRANSACTION_ABORTABLE
                        result.partitions.add(topic_name=topic.topic_name, partition=partition, error_code=code)
            return results

        harness.catalog.answers["AddPartitionsToTxn"] = answer
        api_key = ApiKey.ADD_PARTITIONS_TO_TXN
        values = values_of(api_key, version)
        if version >= 4:
            (first,) = values["transactions"]
            values["transactions"] = [first, {**first, "transactional_id": "u", "verify_only": False}]
        read = await harness.client().ask(api_key, version, **values)
        (request,) = harness.catalog.requests("AddPartitionsToTxn")
        assert [entry.verify_only for entry in request.transactions] == ([True, False] if version >= 4 else [False])
        sent = request.transactions[0]
        assert (sent.transactional_id, sent.producer_id, sent.producer_epoch) == ("t", 4000, 3)
        assert [(entry.topic_name, list(entry.partitions)) for entry in sent.topics] == [("orders", [0, 1])]
        assert codes_of(api_key, version, read) == {ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE}
        if version >= 4:
            assert [result.transactional_id for result in read.results_by_transaction] == ["t", "u"]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_add_partitions_to_txn_when_the_coordinator_cannot_write(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        harness.catalog.answers["AddPartitionsToTxn"] = lambda r, p: pb.AddPartitionsToTxnResponse(error_code=code)
        api_key = ApiKey.ADD_PARTITIONS_TO_TXN
        answer = await harness.client().ask(api_key, version, **values_of(api_key, version))
        found = {int(answer.error_code)} if version >= 4 else codes_of(api_key, version, answer)
        assert found == {code}

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.ADD_OFFSETS_TO_TXN))
def test_add_offsets_to_txn(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        api_key = ApiKey.ADD_OFFSETS_TO_TXN
        harness.catalog.answers["AddOffsetsToTxn"] = lambda r, p: answer_with(api_key, 0)
        assert int((await harness.client().ask(api_key, version, **values_of(api_key, version))).error_code) == 0
        (request,) = harness.catalog.requests("AddOffsetsToTxn")
        assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("t", 4000, 3)
        assert request.group_id == "g"

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.END_TXN))
@pytest.mark.parametrize("committed", [True, False])
def test_end_txn(version: int, committed: bool) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["EndTxn"] = lambda r, p: answer_with(ApiKey.END_TXN, 0)
        values = {**values_of(ApiKey.END_TXN, version), "committed": committed}
        answer = await harness.client().ask(ApiKey.END_TXN, version, **values)
        assert int(answer.error_code) == 0
        if version >= 5:
            assert (answer.producer_id, answer.producer_epoch) == (4000, 4)
        (request,) = harness.catalog.requests("EndTxn")
        assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("t", 4000, 3)
        assert (request.committed, request.bumps_epoch) == (committed, version >= 5)

    run(scenario)


def test_describe_transactions() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.DescribeTransactionsResponse()
        state = answer.transaction_states.add(
            transactional_id="t",
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=1_700_000_000_000,
            **PRODUCER,
        )
        state.topics.add(topic_name="orders", partitions=[0, 2])
        answer.transaction_states.add(transactional_id="u", error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        harness.catalog.answers["DescribeTransactions"] = lambda r, p: answer
        client = harness.client()
        described = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["t", "u"])
        first, second = described.transaction_states
        assert (first.transactional_id, first.transaction_state) == ("t", "Ongoing")
        assert (first.producer_id, first.producer_epoch) == (4000, 3)
        assert (first.transaction_timeout.total_seconds(), first.transaction_start_time.timestamp()) == (60, 1.7e9)
        assert [(topic.topic, topic.partitions) for topic in first.topics] == [("orders", (0, 2))]
        assert int(second.error_code) == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        del harness.catalog.answers["DescribeTransactions"]
        failed = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["t"])
        (refused,) = failed.transaction_states
        assert (refused.transactional_id, int(refused.error_code)) == ("t", ErrorCode.COORDINATOR_NOT_AVAILABLE)

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.LIST_TRANSACTIONS))
def test_list_transactions(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.ListTransactionsResponse(unknown_state_filters=["Gone"])
        answer.transaction_states.add(transactional_id="t", producer_id=4000, transaction_state="Ongoing")
        harness.catalog.answers["ListTransactions"] = lambda r, p: answer
        filters: dict[str, Any] = {"state_filters": ["Ongoing", "Gone"], "producer_id_filters": [4000]}
        if version >= 1:
            filters["duration_filter"] = 5000
        if version >= 2:
            filters["transactional_id_pattern"] = "t.*"
        client = harness.client()
        listed = await client.ask(ApiKey.LIST_TRANSACTIONS, version, **filters)
        assert (int(listed.error_code), listed.unknown_state_filters) == (0, ("Gone",))
        (state,) = listed.transaction_states
        assert (state.transactional_id, state.producer_id, state.transaction_state) == ("t", 4000, "Ongoing")
        (request,) = harness.catalog.requests("ListTransactions")
        assert (list(request.state_filters), list(request.producer_id_filters)) == (["Ongoing", "Gone"], [4000])
        assert request.duration_filter_ms == (5000 if version >= 1 else -1)
        assert request.transactional_id_pattern == ("t.*" if version >= 2 else "")
        del harness.catalog.answers["ListTransactions"]
        failed = await client.ask(ApiKey.LIST_TRANSACTIONS, version)
        assert int(failed.error_code) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(scenario)
