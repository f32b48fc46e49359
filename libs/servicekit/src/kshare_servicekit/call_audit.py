"""The audit log of calls between processes: who gave a role an administrator's command, and with which outcome.

The protos say which methods have a line (`option (is_audited)`). A command that waits asks again and again until it is
done; equal calls with the same outcome have one line a minute. Denied calls of all methods have lines within a limit.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from kshare_core.security.audit_log import TEXT_LIMIT, write_audit_line
from kshare_core.security.bounded_lines import BoundedLines
from kshare_rpc.exchange.tls import Caller
from kshare_rpc.network import Method

REPEATED_AFTER_S = 60.0
REMEMBERED_CALLS_LIMIT = 1_000
RESOURCES_LIMIT = 100
"""Elements of an array in a line; `resource_count` says how many there were."""


class CallAudit:
    """The audit log of one node; `now_s` returns seconds of a steady clock."""

    def __init__(self, role: str, node_id: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._node = {"role": role, "node_id": node_id}
        self._now_s = now_s
        self._denials = BoundedLines(now_s)
        self._written: OrderedDict[tuple[str, bytes, Caller, str], float] = OrderedDict()

    def operation(
        self, method: Method[Any, Any], request: Message | None, caller: Caller, response: Message | None, failure: str
    ) -> None:
        """Writes the line of a call: its response, or what failed."""
        code = int(getattr(response, "error_code", 0) or 0)
        problem = failure or (str(getattr(response, "error_message", "")) or str(code) if code else "")
        if self._is_repeated((method.path, b"" if request is None else request.SerializeToString(), caller, problem)):
            return
        asked = {} if request is None else MessageToDict(request, preserving_proto_field_name=True)
        counts = {name: len(value) for name, value in asked.items() if isinstance(value, list)}
        self._write(
            "operation",
            caller,
            api=method.name,
            request={name: _shortened(value) for name, value in asked.items()},
            resource_count=sum(counts.values()),
            outcome="failed" if problem else "succeeded",
            problem=problem[:TEXT_LIMIT],
        )

    def denial(self, path: str, caller: Caller) -> None:
        """Writes the line of a call that the caller's certificate does not allow."""
        left_out = self._denials.take()
        if left_out is not None:
            self._write("denied", caller, api=path.rpartition("/")[2], left_out_before=left_out)

    def _is_repeated(self, call: tuple[str, bytes, Caller, str]) -> bool:
        now_s = self._now_s()
        if now_s - self._written.get(call, -REPEATED_AFTER_S) < REPEATED_AFTER_S:
            return True
        self._written[call] = now_s
        self._written.move_to_end(call)
        if len(self._written) > REMEMBERED_CALLS_LIMIT:
            self._written.popitem(last=False)
        return False

    def _write(self, event: str, caller: Caller, **fields: Any) -> None:
        who = {"principal": caller.name, "roles": sorted(caller.roles), "client_host": caller.host}
        write_audit_line(event, {**who, **self._node, **fields})


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(each) for each in value[:RESOURCES_LIMIT]]
    return value[:TEXT_LIMIT] if isinstance(value, str) else value
