"""Conversion of results to messages."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_share_coordinator.machine.operations import Operation, Result


def share_partition_results(
    operations: Sequence[Operation], results: Sequence[Result]
) -> list[messages.SharePartitionResult]:
    """The answers of RPCs that give only an error code for each share-partition."""
    return [
        messages.SharePartitionResult(
            topic_id=operation.key.topic_id,
            partition=operation.key.partition,
            error_code=result.error_code,
            error_message=result.error_message,
        )
        for operation, result in zip(operations, results, strict=True)
    ]
