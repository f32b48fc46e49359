"""The partitions that one request creates or deletes, charged to the client's controller_mutation_rate (KIP-599)."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext


class Mutations:
    """Strict: clients of this version know THROTTLING_QUOTA_EXCEEDED; others are only throttled."""

    def __init__(self, context: RequestContext, *, is_strict: bool) -> None:
        self._context = context
        self._is_strict = is_strict
        self.throttle_ms = 0

    def take(self, partitions: int) -> KafkaError | None:
        """The error of an element that may not be changed now."""
        limit = self._context.gateway.configs.integer("kshare.max.partitions")
        # More is refused later, and would keep the client out for hours, as a typing error.
        charged = partitions if partitions <= limit else 0
        throttle_ms = self._context.take_mutations(charged, is_strict=self._is_strict)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if throttle_ms and self._is_strict:
            return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        return None
