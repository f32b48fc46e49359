"""The routes of views, and the same views as streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from kshare_console.refusal import Refusal, bad_request
from kshare_console.role_calls import RoleCalls
from kshare_console.viewers import Session, Viewer
from kshare_console.views.groups import group, groups
from kshare_console.views.overview import overview
from kshare_console.views.paging import Json, PageRequest
from kshare_console.views.placement import placement
from kshare_console.views.records import record
from kshare_console.views.topics import topic, topics
from kshare_core.security.acls import Operation

Answer = Callable[[Session, web.Request], Awaitable[Json]]
Compute = Callable[[], Awaitable[Json]]
MAX_OFFSET_DIGITS = 19


class ViewRoutes:
    """See the module docstring."""

    def __init__(self, roles: RoleCalls) -> None:
        self._roles = roles

    def routes(self) -> Mapping[str, Answer]:
        """What answers GET, by path."""
        return {
            "/api/overview": lambda session, _: self._overview(session.viewer),
            "/api/groups": self._groups,
            "/api/groups/{group}": lambda session, request: self._group(session.viewer, request.match_info["group"]),
            "/api/groups/{group}/share-partitions": self._share_partitions,
            "/api/groups/{group}/topics/{topic}/partitions/{partition}": self._strip_of,
            "/api/groups/{group}/poison": self._poison,
            "/api/records/{topic}/{partition}/{offset}": self._record,
            "/api/dead-letters": lambda session, _: session.viewer.dead_letters.read(),
            "/api/topics": lambda session, request: topics(session.viewer.client, PageRequest.of_query(request.query)),
            "/api/topics/{topic}": lambda session, request: topic(session.viewer.client, request.match_info["topic"]),
            "/api/placement": lambda session, _: self._placement(session.viewer),
        }

    def live(self, viewer: Viewer, query: Mapping[str, str]) -> tuple[tuple[str, ...], Compute]:
        """The key and the computation of `?view=…`; Refusal for a view that is not live."""
        view = query.get("view", "")
        if view == "overview":
            return (view,), lambda: self._overview(viewer)
        if view == "group":
            group_id = _needed(query, "group")
            return (view, group_id), lambda: self._group(viewer, group_id)
        if view == "strip":
            group_id, topic_name = _needed(query, "group"), _needed(query, "topic")
            partition = partition_of(_needed(query, "partition"))
            first_offset = offset_of(query.get("from_offset", "0"))
            key = (view, group_id, topic_name, str(partition), str(first_offset))
            return key, lambda: viewer.share_partitions.strip(
                group_id, topic_name, partition, first_offset=first_offset
            )
        if view == "placement":
            return (view,), lambda: self._placement(viewer)
        raise bad_request("view must be overview, group, strip or placement")

    async def _overview(self, viewer: Viewer) -> Json:
        return overview(await viewer.observation.look(), viewer.observation.history)

    async def _groups(self, session: Session, request: web.Request) -> Json:
        return groups(await session.viewer.observation.look(), PageRequest.of_query(request.query))

    async def _group(self, viewer: Viewer, group_id: str) -> Json:
        return await group(viewer.client, viewer.share_partitions, group_id)

    async def _share_partitions(self, session: Session, request: web.Request) -> Json:
        asked = PageRequest.of_query(request.query)
        return await session.viewer.share_partitions.page(request.match_info["group"], asked)

    async def _strip_of(self, session: Session, request: web.Request) -> Json:
        found = request.match_info
        return await session.viewer.share_partitions.strip(
            found["group"],
            found["topic"],
            partition_of(found["partition"]),
            first_offset=offset_of(request.query.get("from_offset", "0")),
        )

    async def _poison(self, session: Session, request: web.Request) -> Json:
        asked = PageRequest.of_query(request.query)
        return await session.viewer.share_partitions.poison(request.match_info["group"], asked)

    async def _record(self, session: Session, request: web.Request) -> Json:
        found = request.match_info
        partition, offset = partition_of(found["partition"]), offset_of(found["offset"])
        return await record(session.viewer.client, found["topic"], partition, offset)

    async def _placement(self, viewer: Viewer) -> Json:
        if not await viewer.client.may(Operation.DESCRIBE):
            raise Refusal(403, "CLUSTER_AUTHORIZATION_FAILED", "you need DESCRIBE on the cluster to see placement")
        return placement(await self._roles.partitions(), await self._roles.state_partitions())


def partition_of(text: str) -> int:
    """A partition's number; Refusal."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise bad_request(f"a partition is a number, found {text[:20]!r}")
    return int(text)


def offset_of(text: str) -> int:
    """An offset; Refusal."""
    if not (text.isascii() and text.isdigit() and len(text) < MAX_OFFSET_DIGITS):
        raise bad_request(f"an offset is a number from 0 on, found {text[:30]!r}")
    return int(text)


def _needed(query: Mapping[str, str], name: str) -> str:
    found = query.get(name, "")
    if not found:
        raise bad_request(f"{name} is missing")
    return found
