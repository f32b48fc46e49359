"""The limit of elements in a request's arrays: kshare.request.max.elements.

Interdependent elements are processed in one turn of the gateway's loop, and in one turn or command of the role behind
it. So a request with more elements than the limit is rejected before its handler starts, with INVALID_REQUEST. Two
kinds of APIs have no such limit: those answered in parts (`request_parts`), where it applies to each part, and those
registered with `works_in_slices` (`kshare_gateway.served_apis`). Elements of one byte (acknowledge types) do not count.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire.messages import Struct


def too_many_elements(elements: int, limit: int, what: str = "The request") -> KafkaError:
    text = f"{what} has {elements} elements in its arrays; kshare.request.max.elements allows {limit}"
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def element_count(message: Struct, limit: int) -> int:
    """Number of elements in all arrays of a message, at every depth; above `limit`, some number greater than it."""
    count = 0
    for name in message.__slots__:
        value = getattr(message, name)
        if not isinstance(value, list | tuple):
            continue
        count += len(value)
        if count > limit:
            return count
        if value and isinstance(value[0], Struct):
            for element in value:
                count += element_count(element, limit - count)
                if count > limit:
                    return count
    return count
