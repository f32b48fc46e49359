"""Execution of the operations of one request, with one result for each share-partition.

All operations of a request are submitted to the runner within one turn of the event loop, so they become durable
together.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TypeVar

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_fastpath.prompt_future import PromptFuture, when_all_ended
from kshare_share_coordinator.handlers.request_order import RequestOrder, Sent
from kshare_share_coordinator.machine.operations import Operation, Result, key_problem
from kshare_share_coordinator.ownership import Ownership

Response = TypeVar("Response")

SHARE_PARTITIONS_PER_REQUEST_LIMIT = 5_000
UNORDERED = Sent()
NOT_KNOWN = repeat(0)


class OperationService:
    """Executes operations. `submit` gives one to the machine's runner; `report_corrupt` is for the health check.

    `refusal` returns why a share-partition's state partition is not served although this node owns it.
    `answered` gets the results of each request.
    """

    def __init__(
        self,
        *,
        submit: Callable[[Operation], asyncio.Future[Result]],
        ownership: Ownership,
        report_corrupt: Callable[[SharePartitionKey, str], None],
        refusal: Callable[[SharePartitionKey], Result | None],
        answered: Callable[[Sequence[Operation], Sequence[Result]], None] = lambda operations, results: None,
    ) -> None:
        self._submit = submit
        self._ownership = ownership
        self._report_corrupt = report_corrupt
        self._refusal = refusal
        self._answered = answered
        self._order = RequestOrder()

    def execute(
        self,
        operations: Sequence[Operation],
        respond: Callable[[Sequence[Result]], Response],
        sent: Sent = UNORDERED,
        owner_epochs: Iterable[int] = NOT_KNOWN,
    ) -> asyncio.Future[Response]:
        """The response that `respond` makes of one result for each operation, in the same order.

        `owner_epochs` are those that the sender knows, one for each operation (`Ownership.refusal`).
        Operations of a request that arrives after a later one get COORDINATOR_NOT_AVAILABLE (see `request_order`).
        """
        answer: PromptFuture[Response] = PromptFuture(loop=asyncio.get_running_loop())
        if len(operations) > SHARE_PARTITIONS_PER_REQUEST_LIMIT:
            text = f"{len(operations)} share-partitions; at most {SHARE_PARTITIONS_PER_REQUEST_LIMIT} are allowed"
            answer.set_result(respond([Result(ErrorCode.INVALID_REQUEST, text)] * len(operations)))
            return answer
        begun = [
            self._begin(operation, sent, owner_epoch)
            for operation, owner_epoch in zip(operations, owner_epochs, strict=False)
        ]

        def response() -> Response:
            results = [
                each if isinstance(each, Result) else self._finish(operation, each)
                for operation, each in zip(operations, begun, strict=True)
            ]
            self._answered(operations, results)
            return respond(results)

        submitted = [each for each in begun if not isinstance(each, Result)]
        when_all_ended(submitted, lambda: answer.complete(response))
        return answer

    def _begin(self, operation: Operation, sent: Sent, owner_epoch: int) -> Result | asyncio.Future[Result]:
        problem = key_problem(operation.key)
        if problem:
            return Result(ErrorCode.INVALID_REQUEST, problem)
        refusal = self._ownership.refusal(operation.key, owner_epoch)
        if refusal:
            return refusal
        refusal = self._refusal(operation.key)
        if refusal:
            return refusal
        if self._order.is_late(operation.key, sent):
            return Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a later request of its sender came before this one")
        return self._submit(operation)

    def _finish(self, operation: Operation, future: asyncio.Future[Result]) -> Result:
        try:
            result = future.result()
        except StorageFailure as failure:
            return Result(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        except KafkaError as refusal:
            return Result(refusal.code, refusal.message)
        if result.error_code == ErrorCode.CORRUPT_MESSAGE:
            self._report_corrupt(operation.key, result.error_message)
        # The write may have taken so long that another node owns the state by now.
        return self._ownership.lease_refusal() or result


class OperationHandler:
    """The base class of handlers whose requests are operations: a subclass in this package needs no other registration.

    Its method with `kshare_rpc.serving.answers` translates the request, and the results into the response.
    """

    def __init__(self, service: OperationService) -> None:
        self._service = service


def operation_handlers(service: OperationService) -> list[OperationHandler]:
    """One handler of each subclass in this package."""
    package = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return [kind(service) for kind in OperationHandler.__subclasses__() if kind.__module__.startswith(package.__name__)]
