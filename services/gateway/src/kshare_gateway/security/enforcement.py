"""The enforcement of access rules: requests reach handlers only with what their client may do.

A request of several elements is divided: the handler answers for the allowed ones, the API's `failed` for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.connections.request_parts import JoinedResponse, outer_field
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import ElementNeed, check_whole, denied
from kshare_gateway.served_apis import ServedApi
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import ZERO_ID, Request, Response

Answer = Callable[[RequestContext, Any], Awaitable[Response | None]]


async def answer_authorized(
    context: RequestContext, served: ServedApi, request: Request[Any], answer: Answer
) -> Response | None:
    """The response to a request; `answer` gets its allowed elements. KafkaError if it is denied as a whole."""
    check_whole(context, request, served.access)
    if served.access.each is None or served.elements is None:
        return await answer(context, request)
    field = outer_field(served.elements, request)
    elements = getattr(request, field) if field else ()
    # Produce requests are sent on in their order, and one that was received is carried out: it yields to no other.
    in_slices = served.api_key != ApiKey.PRODUCE
    refused = await _refused_elements(context, served.access.each, elements, in_slices=in_slices)
    if not refused:
        return await answer(context, request)
    assert served.failed is not None, "an API with a need of each element has `failed`"
    joined = JoinedResponse(served.api_key)
    if len(refused) < len(elements):
        allowed = [element for at, element in enumerate(elements) if at not in refused]
        part = request.replaced(**{field: allowed})
        try:
            response = await answer(context, part)
        except KafkaError as error:
            response = served.failed(context, part, error)
        if response is not None:  # a Produce with acks 0 has none, but ends the connection for what is denied
            joined.add(response)
    for problem in {error.code: error for error in refused.values()}.values():
        left_out = [elements[at] for at, error in refused.items() if error.code == problem.code]
        response = served.failed(context, request.replaced(**{field: left_out}), problem)
        if response is None:
            return None
        joined.add(_of_elements(response))
    return joined.response()


def _of_elements(response: Response) -> Response:
    """Without an error of the whole request, which only elements have."""
    return response.replaced(error_code=ErrorCode.NONE) if getattr(response, "error_code", 0) else response


async def _refused_elements(
    context: RequestContext, need: ElementNeed, elements: Any, *, in_slices: bool
) -> dict[int, KafkaError]:
    """The elements without authorization, by their positions, and those of topics whose ids are not known.

    The latter cannot be checked, and may be known when the handler uses them. Produce's handler refuses them itself: it
    notes that they are sent again.
    """
    found: dict[int, KafkaError] = {}
    count = context.count_elements()
    for at, element in enumerate(elements):
        name = need.name(context, element)
        if name is None and in_slices and getattr(element, "topic_id", ZERO_ID) != ZERO_ID:
            found[at] = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        elif name is not None and not context.authorize(need.operation, need.resource_type, name):
            found[at] = denied(need.resource_type)
        if count.add() and in_slices:
            await count.next_slice()
    return found
