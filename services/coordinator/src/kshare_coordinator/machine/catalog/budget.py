"""The catalog's budget: how many bytes its rows may have, and how many one request may add.

The budget counts the rows that clients lengthen: topics, and the configs of groups and brokers. Every role keeps all of
them in memory. A change that makes a row longer is refused where the catalog would exceed `kshare.catalog.max.bytes`. A
change that does not make a row longer always passes, also in a catalog that an older version let grow further.
"""

from __future__ import annotations

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError

CHANGED_CONFIGS_LIMIT = 10_000
"""Changed configs in one request, as QuorumController.MAX_RECORDS_PER_USER_OP."""


class CatalogBudget:
    """The remaining budget of one request; each accepted row reduces it."""

    def __init__(self, state: CoordinatorState, configs: Configs) -> None:
        self._bytes = state.catalog_bytes
        self._bytes_limit = configs.integer("kshare.catalog.max.bytes")
        self._request_bytes = 0
        self._request_bytes_limit = configs.integer("kshare.catalog.request.max.bytes")

    def take(self, before: int, after: int) -> None:
        """A row has `after` bytes instead of `before`; KafkaError POLICY_VIOLATION where there is no room for that."""
        total, written = self._bytes + after - before, self._request_bytes + after
        if after > before:
            if total > self._bytes_limit:
                text = f"The catalog would have {total} bytes; kshare.catalog.max.bytes allows {self._bytes_limit}"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
            if written > self._request_bytes_limit:
                limit = self._request_bytes_limit
                text = f"The request would write {written} bytes; kshare.catalog.request.max.bytes allows {limit}"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
        self._bytes, self._request_bytes = total, written


def check_changed_configs(count: int) -> None:
    """KafkaError POLICY_VIOLATION, with Kafka's words, where one request changes too many configs."""
    if count > CHANGED_CONFIGS_LIMIT:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
