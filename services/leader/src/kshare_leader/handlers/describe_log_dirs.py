"""DescribeLogDirs (key 35): the sizes of logs, in bytes of their segments, from memory.

The answer leaves out partitions that this node does not lead or cannot open.
"""

from __future__ import annotations

from kshare_leader.handlers.partitions import key_of
from kshare_leader.ports import ServedLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DESCRIBE_LOG_DIRS
from kshare_rpc.serving import answers


class DescribeLogDirsHandler:
    """Answers `Leader/DescribeLogDirs`."""

    def __init__(self, logs: ServedLogs) -> None:
        self._logs = logs

    @answers(DESCRIBE_LOG_DIRS)
    async def __call__(
        self, request: leader_pb2.DescribeLogDirsRequest, payload: memoryview
    ) -> leader_pb2.DescribeLogDirsResponse:
        answer = leader_pb2.DescribeLogDirsResponse()
        for partition in request.partitions:
            log = self._logs.find(key_of(partition))
            if log is not None:
                answer.results.add(
                    topic_id=partition.topic_id,
                    partition=partition.partition,
                    size_bytes=log.size_bytes,
                )
        return answer
