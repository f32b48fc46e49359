"""What `--console-admin` allows: release and reject, group configs, drains, redrive. Without it, each is a Refusal 403.

An action is asked back first: without `"confirmed": true` it does nothing and its answer has the question. The gateway
judges the user where the action is a Kafka request. Where it is a call between roles, the console asks the gateway what
the user may do: READ on group and topic to end acquisitions, as for AlterShareGroupOffsets, and ALTER on the cluster to
drain. Every action has a line in the audit log, also one that was denied, failed or was interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from kshare_console.refusal import Refusal, bad_request, not_found
from kshare_console.role_calls import RoleCalls
from kshare_console.viewers import Viewer
from kshare_console.views.paging import Json
from kshare_core.security.acls import Operation
from kshare_core.security.audit_log import TEXT_LIMIT, write_audit_line
from kshare_core.security.bounded_lines import BoundedLines
from kshare_core.states import AcknowledgeType
from kshare_kafka_client.properties import InvalidOption
from kshare_kafka_client.redrive.direct import redrive_directly
from kshare_kafka_client.redrive.request import Account, BadRequest, RedriveFailed, RedriveRequest, Selection
from kshare_kafka_client.topics import KafkaUnavailable, UnknownTopic
from kshare_rpc.generated.kshare.v1 import leader_pb2

KINDS = {"release": AcknowledgeType.RELEASE, "reject": AcknowledgeType.REJECT}
DONE = {"release": "released", "reject": "rejected"}
CONFIGS_LIMIT = 50
TEXTS_LIMIT = 50
REDRIVE_TIMEOUT_S = 60.0
"""How long a redrive waits for the next records of a partition."""
MAX_OFFSET = (1 << 63) - 1
Body = Mapping[str, object]


class Actor(NamedTuple):
    """Who acts: the viewer, and the address of the browser."""

    viewer: Viewer
    host: str


class Actions:
    """See the module docstring."""

    def __init__(self, roles: RoleCalls, node_id: int, *, is_allowed: bool) -> None:
        self._roles = roles
        self._node_id = node_id
        self._denials = BoundedLines()
        self._redrive = asyncio.Lock()
        self.is_allowed = is_allowed

    def check_allowed(self, actor: Actor, path: str) -> None:
        """Refusal 403 in a read-only console; called before anything of the request is read."""
        if self.is_allowed:
            return
        words = "this console is read-only; start it with --console-admin to change things"
        if self._denials.take() is not None:
            self._write(actor, "ConsoleAction", {"path": path}, "denied", words)
        raise Refusal(403, "READ_ONLY", words)

    async def end_acquisitions(
        self, actor: Actor, kind: str, group_id: str, topic: str, partition: int, body: Body
    ) -> Json:
        """Releases or rejects what members hold in a range of offsets."""
        first, last = number_of(body, "first_offset"), number_of(body, "last_offset")
        asked = {
            "group": group_id,
            "topic": topic,
            "partition": partition,
            "first_offset": first,
            "last_offset": last,
        }

        async def act() -> Json:
            await actor.viewer.client.check_group(group_id, Operation.READ)
            await actor.viewer.client.check_topic(topic, Operation.READ)
            reading = await actor.viewer.share_partitions.reading(group_id, topic, partition, first_offset=first)
            call = leader_pb2.EndAcquisitionsRequest(
                group_id=group_id,
                topic_id=reading.offset.topic_id,
                partition=partition,
                first_offset=first,
                last_offset=last,
                acknowledge_type=KINDS[kind],
                dry_run=not is_confirmed(body),
                principal=actor.viewer.principal,
            )
            count = (await self._roles.end_acquisitions(reading.leader, call)).record_count
            if not is_confirmed(body):
                raise ask_back(
                    f"{kind} {count} records of {topic}-{partition} at offsets {first} to {last}, which members of "
                    f"group {group_id} hold? Their later acknowledgements will fail."
                )
            return {DONE[kind]: count}

        return await self.audited(actor, f"{kind.capitalize()}Acquisitions", asked, act)

    async def alter_group_configs(self, actor: Actor, group_id: str, body: Body) -> Json:
        """Sets group configs; null resets one."""
        changes = _configs_of(body)

        async def act() -> Json:
            await actor.viewer.client.alter_group_configs(group_id, changes, dry_run=not is_confirmed(body))
            if not is_confirmed(body):
                listed = ", ".join(
                    f"{name} to its default" if value is None else f"{name}={value}" for name, value in changes.items()
                )
                raise ask_back(f"Set {listed} of group {group_id}?")
            return {"altered": sorted(changes)}

        return await self.audited(actor, "AlterGroupConfigs", {"group": group_id, "configs": dict(changes)}, act)

    async def drain(self, actor: Actor, body: Body) -> Json:
        """Starts to move all partitions away from a leader or share coordinator."""
        role, name = text_of(body, "role"), text_of(body, "name")
        if role not in ("leader", "share-coordinator"):
            raise bad_request("role must be leader or share-coordinator")
        prefix, _, digits = name.rpartition("-")
        if prefix != role or not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise bad_request(f"name must be {role}-NUMBER, found {name[:100]!r}")
        node_id = int(digits)

        async def act() -> Json:
            if not await actor.viewer.client.may(Operation.ALTER):
                raise Refusal(403, "CLUSTER_AUTHORIZATION_FAILED", "you need ALTER on the cluster to drain a node")
            placement, states = await self._roles.partitions(), await self._roles.state_partitions()
            known = placement.leaders if role == "leader" else states.share_coordinators
            if node_id not in {each.node_id for each in known}:
                raise not_found(f"there is no {name}")
            if not is_confirmed(body):
                raise ask_back(f"Drain {name}? All its partitions move to other nodes, and none is placed there again.")
            if role == "share-coordinator":
                await self._roles.drain_share_coordinator(node_id)
                return {"draining": name}
            return {"draining": name, "partitions_left": await self._roles.drain_leader(node_id)}

        return await self.audited(actor, "Drain", {"name": name}, act)

    async def redrive(self, actor: Actor, body: Body) -> Json:
        """Produces dead letters to their source topic again, as the user: each once, over repeated runs.

        `dead_letter_topic`, or the topic of `group_id`; `reasons` and `topics` select. A dry run needs no confirmation.
        """
        dry_run = body.get("dry_run") is True
        topic = body.get("dead_letter_topic")
        wanted = text_of(body, "group_id") if "group_id" in body or topic is None else ""
        topics = [topic] if isinstance(topic, str) and topic else await _topics_of(actor.viewer, wanted)
        selection = Selection(
            groups=(wanted,) if wanted else (), reasons=_texts(body, "reasons"), topics=_texts(body, "topics")
        )
        asked: dict[str, object] = {"dead_letter_topics": topics, "group": wanted, "reasons": list(selection.reasons)}

        async def act() -> Json:
            if not dry_run and not is_confirmed(body):
                would = (await self._redriven(actor.viewer, topics, selection, dry_run=True)).moved_count
                raise ask_back(f"Produce {would} records of {', '.join(topics)} to their source topics again?")
            account = await self._redriven(actor.viewer, topics, selection, dry_run=dry_run)
            return {
                "would_redrive" if dry_run else "redriven": account.moved_count,
                "moved": account.moved,
                "already_redriven": account.already_moved,
                "problems": account.problems,
                "examples": account.first_ones,
            }

        return await act() if dry_run else await self.audited(actor, "Redrive", asked, act)

    async def _redriven(self, viewer: Viewer, topics: Sequence[str], selection: Selection, *, dry_run: bool) -> Account:
        """Runs in a thread; one at a time, as each has producers and consumers of its own."""
        if self._redrive.locked():
            raise Refusal(503, "BUSY", "another redrive is under way; try again when it has ended")
        request = RedriveRequest(
            properties={**viewer.properties, "client.id": "kshare-console", "log_level": "0"},
            dead_letter_topics=tuple(topics),
            selection=selection,
            dry_run=dry_run,
            timeout_s=REDRIVE_TIMEOUT_S,
        )
        async with self._redrive:
            try:
                return await asyncio.to_thread(redrive_directly, request)
            except (BadRequest, InvalidOption, UnknownTopic) as problem:
                raise bad_request(str(problem)) from None
            except (RedriveFailed, KafkaUnavailable) as problem:
                raise Refusal(503, "REDRIVE_FAILED", str(problem)) from None

    async def audited(
        self, actor: Actor, api: str, request: Mapping[str, object], act: Callable[[], Awaitable[Json]]
    ) -> Json:
        """The result of an action, with a line in the audit log. A question that is asked back has none."""
        try:
            result = await act()
        except Refusal as problem:
            if not problem.question:
                outcome = "denied" if problem.status in (401, 403) else "failed"
                self._write(actor, api, request, outcome, problem.words)
            raise
        except asyncio.CancelledError:
            self._write(actor, api, request, "interrupted", "what was begun may go on to its end")
            raise
        except BaseException as error:
            self._write(actor, api, request, "failed", f"{type(error).__name__}: {error}")
            raise
        self._write(actor, api, request, "succeeded", "", result)
        return result

    def _write(
        self,
        actor: Actor,
        api: str,
        request: Mapping[str, object],
        outcome: str,
        problem: str,
        result: Json | None = None,
    ) -> None:
        who = {"principal": actor.viewer.principal, "client_host": actor.host, "role": "console"}
        what = {"node_id": self._node_id, "api": api, "request": _shortened(request), "outcome": outcome}
        write_audit_line("operation", {**who, **what, "problem": problem[:TEXT_LIMIT], "result": dict(result or {})})


def ask_back(question: str) -> Refusal:
    return Refusal(400, "CONFIRMATION_NEEDED", "confirm the action", question=question)


def is_confirmed(body: Body) -> bool:
    return body.get("confirmed") is True


def number_of(body: Body, name: str) -> int:
    """An offset; Refusal."""
    found = body.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_OFFSET:
        raise bad_request(f"{name} must be a number from 0 on")
    return found


def text_of(body: Body, name: str) -> str:
    """A text; Refusal."""
    found = body.get(name)
    if not isinstance(found, str) or not found:
        raise bad_request(f"{name} must be a text")
    return found


def _texts(body: Body, name: str) -> tuple[str, ...]:
    """A list of texts, empty without one; Refusal."""
    found = body.get(name, [])
    if not isinstance(found, list) or len(found) > TEXTS_LIMIT or not all(isinstance(each, str) for each in found):
        raise bad_request(f"{name} must be a list of at most {TEXTS_LIMIT} texts")
    return tuple(found)


async def _topics_of(viewer: Viewer, group_id: str) -> list[str]:
    """The group's dead-letter topic; Refusal 404 without one."""
    found = [topic for topic, groups in (await viewer.dead_letters.topics()).items() if group_id in groups]
    if not found:
        raise not_found(f"group {group_id} has no dead-letter topic (errors.deadletterqueue.topic.name)")
    return found


def _configs_of(body: Body) -> dict[str, str | None]:
    found = body.get("configs")
    if not isinstance(found, dict) or not 1 <= len(found) <= CONFIGS_LIMIT:
        raise bad_request(f"configs must be an object with 1 to {CONFIGS_LIMIT} names and values")
    changes: dict[str, str | None] = {}
    for name, value in found.items():
        if not (value is None or isinstance(value, str)):
            raise bad_request(f"the value of {name[:100]} must be a text, or null to reset it")
        changes[name] = value
    return changes


def _shortened(request: Mapping[str, object]) -> dict[str, object]:
    return {name: value[:TEXT_LIMIT] if isinstance(value, str) else value for name, value in request.items()}
