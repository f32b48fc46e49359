"""The log configuration: lines on standard error, as JSON or for a person, with role and node id, also of libraries.

A process with all roles takes the role of a line from the package that logs it. Libraries serve several roles there, so
their lines have none. Lines of a role with several nodes in the process have no node id.

Lines about work for a client's request have its `request_id`, which follows the request through all roles. Lines of
traced work also have the trace id and span id. Lines about a group or a partition have `group`, `topic_id`, `partition`
(kshare_core.log_fields). At level debug every request and every call between roles has a line.

A line may quote what a client sent. Control characters in it are escaped, so that a client can neither forge a line nor
change a terminal, and a text has at most TEXT_LIMIT characters. Tracebacks keep their lines.

Structlog is imported here, without rich: it imports rich where that is installed, for tracebacks with local variables.
Roles print plain tracebacks, and the import takes a tenth of a role's start.

The logger "kshare.audit" writes lines of JSON of its own (kshare_core.security.audit_log).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kshare_core.log_fields import current_log_fields
from kshare_core.tracing import current_traceparent

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_RICH = "rich"
_is_rich_loaded = _RICH in sys.modules
if not _is_rich_loaded:
    sys.modules[_RICH] = None  # type: ignore[assignment]  # its import fails now, as if it were not installed
try:
    import structlog as structlog
finally:
    if not _is_rich_loaded:
        del sys.modules[_RICH]

TEXT_LIMIT = 2_000
"""Characters of a line's text, and of each of its fields; a client may send a name of 32 KiB."""
TRACEBACK_FIELDS = ("exception", "stack")

LogFormat = Literal["console", "json"]
NodeFields = dict[str, str | int]
"""The fields that tell the node of a line: role and node_id, or a part of them."""


def configure(*, role: str, node_id: int, log_format: LogFormat = "console", log_level: str = "info") -> None:
    """Sets up structlog and the standard library's logging for a process of one role; may be called again."""
    fields: NodeFields = {"role": role, "node_id": node_id}
    _configure(lambda _: fields, log_format, log_level)


def configure_all_roles(
    nodes: Iterable[tuple[str, int]], *, log_format: LogFormat = "console", log_level: str = "info"
) -> None:
    """The same for a process with these nodes, each with its role and node id."""
    found: dict[str, NodeFields] = {}
    for role, node_id in nodes:
        package = f"kshare_{role.replace('-', '_')}"
        found[package] = {"role": role} if package in found else {"role": role, "node_id": node_id}
    _configure(lambda logger: found.get(logger.partition(".")[0], {}), log_format, log_level)


def _configure(node_of: Callable[[str], NodeFields], log_format: LogFormat, log_level: str) -> None:
    """`node_of` tells the node of a line by the name of its logger."""

    def add_node(_: Any, __: str, event: EventDict) -> EventDict:
        event.update(current_log_fields())
        event.update(node_of(event["logger"]))
        parts = current_traceparent.get().split("-")
        if len(parts) == 4:
            event["trace_id"], event["span_id"] = parts[1:3]
        return event

    level = logging.getLevelNamesMapping()[log_level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        add_node,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        _quoted,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    configure_audit_log()
    logging.getLogger("hpack").setLevel(max(level, logging.INFO))  # a line for each header of each message
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _quoted(_: Any, __: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str) and name not in TRACEBACK_FIELDS:
            event[name] = quoted(value)
    return event


def quoted(text: str) -> str:
    """The text on one line, without control characters, and not too long."""
    if len(text) > TEXT_LIMIT:
        text = f"{text[:TEXT_LIMIT]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def configure_audit_log() -> None:
    """Lines of the audit log are JSON already, whatever the format and the level of other lines are."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit = logging.getLogger("kshare.audit")
    audit.handlers[:] = [handler]
    audit.setLevel(logging.INFO)
    audit.propagate = False


def _renderers(log_format: LogFormat) -> Sequence[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Structlog's own choice, where rich is installed, prints local variables with a traceback: passwords among them.
    traceback = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=traceback)]
