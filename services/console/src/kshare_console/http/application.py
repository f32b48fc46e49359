"""The application: one middleware for guards and errors, and the routes of docs/internals/console.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from aiohttp import web

from kshare_console.actions import KINDS, Actions, Actor
from kshare_console.http.guards import BODY_LIMIT_BYTES, CSRF_HEADER, HEADERS, check_host, check_origin
from kshare_console.http.page_files import PageFile
from kshare_console.http.streams import send_stream
from kshare_console.http.view_routes import ViewRoutes, partition_of
from kshare_console.live import LiveViews
from kshare_console.refusal import Refusal, bad_request, not_found
from kshare_console.viewers import Session, Viewers
from kshare_console.views.paging import Json
from kshare_core.security.addresses import address_text

VERSION = "0.1.0"
COOKIE = "kshare_console"
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
log = logging.getLogger("kshare_console")

Answer = Callable[[Session, web.Request], Awaitable[Json]]
Action = Callable[[Actor, web.Request, Mapping[str, object]], Awaitable[Json]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Application:
    """See the module docstring. `names` are host names that browsers may use besides addresses."""

    def __init__(
        self,
        *,
        viewers: Viewers,
        views: ViewRoutes,
        live: LiveViews,
        actions: Actions,
        files: Mapping[str, PageFile],
        names: Collection[str],
        is_https: bool,
    ) -> None:
        self._viewers = viewers
        self._views = views
        self._live = live
        self._actions = actions
        self._files = files
        self._names = names
        self._is_https = is_https
        self.requests: dict[int, int] = {}
        """Answers by HTTP status."""
        self.web = web.Application(middlewares=[self._guard], client_max_size=BODY_LIMIT_BYTES)
        self.web.add_routes(self._routes())

    def _routes(self) -> Sequence[web.RouteDef]:
        views, actions = self._views, self._actions
        share_partition = "/api/groups/{group}/topics/{topic}/partitions/{partition}"

        def end_acquisitions(kind: str) -> Action:
            return lambda actor, request, body: actions.end_acquisitions(actor, kind, *_share_partition(request), body)

        return [
            web.get("/api/session", self._describe_session),
            web.post("/api/session", self._sign_in),
            web.delete("/api/session", self._sign_out),
            *(self._get(path, answer) for path, answer in views.routes().items()),
            web.get("/api/stream", self._stream),
            *(self._post(f"{share_partition}/{kind}", end_acquisitions(kind)) for kind in KINDS),
            self._post(
                "/api/groups/{group}/configs",
                lambda actor, request, body: actions.alter_group_configs(actor, request.match_info["group"], body),
            ),
            self._post("/api/placement/drain", lambda actor, _, body: actions.drain(actor, body)),
            self._post("/api/dead-letters/redrive", lambda actor, _, body: actions.redrive(actor, body)),
            web.get("/{path:.*}", self._page),
        ]

    # Every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check_host(request.headers.get("Host", ""), self._names)
            if request.method in UNSAFE:
                check_origin(request.headers.get("Origin"), request.headers.get("Host", ""))
            answer = await handler(request)
        except Refusal as problem:
            answer = _json(problem.body(), status=problem.status)
        except web.HTTPException as problem:
            words = {404: "there is no such path", 405: "this path has no such method"}.get(problem.status)
            code = problem.reason.upper().replace(" ", "_")
            answer = _json({"error": words or problem.reason, "code": code}, status=problem.status)
        except Exception:
            log.exception("a request failed: %s %s", request.method, request.path)
            answer = _json({"error": "the console failed; its log says why", "code": "FAILED"}, status=500)
        self.requests[answer.status] = self.requests.get(answer.status, 0) + 1
        if not answer.prepared:
            answer.headers.update(HEADERS)
            answer.headers.setdefault("Cache-Control", "no-store")
        return answer

    def _get(self, path: str, answer: Answer) -> web.RouteDef:
        async def handle(request: web.Request) -> web.StreamResponse:
            return _json(await answer(await self._session(request), request))

        return web.get(path, handle, allow_head=False)

    def _post(self, path: str, action: Action) -> web.RouteDef:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = await self._session(request)
            actor = Actor(session.viewer, address_text(request.remote or ""))
            self._actions.check_allowed(actor, request.path)
            _check_csrf(session, request)
            return _json(await action(actor, request, await _body(request)))

        return web.post(path, handle)

    async def _session(self, request: web.Request) -> Session:
        return await self._viewers.find(request.cookies.get(COOKIE, ""))

    # Sessions

    async def _describe_session(self, request: web.Request) -> web.StreamResponse:
        session: Session | None = None
        try:
            session = await self._session(request)
        except Refusal as problem:
            if problem.status != 401:
                raise
        return _json(await self._described(session))

    async def _described(self, session: Session | None) -> Json:
        return {
            "principal": None if session is None else session.viewer.principal,
            "sign_in": "sasl" if self._viewers.needs_sign_in else "none",
            "admin": self._actions.is_allowed,
            "version": VERSION,
            "cluster_id": None if session is None else await session.viewer.client.cluster_id(),
            "csrf_token": None if session is None else session.csrf_token,
        }

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        username, password = body.get("username"), body.get("password")
        if not isinstance(username, str) or not isinstance(password, str):
            raise bad_request("username and password must be texts")
        session = await self._viewers.sign_in(username, password, address_text(request.remote or ""))
        answer = _json(await self._described(session))
        if session.token:
            answer.set_cookie(COOKIE, session.token, httponly=True, samesite="Strict", secure=self._is_https, path="/")
        return answer

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        session = await self._session(request)
        _check_csrf(session, request)
        await self._viewers.sign_out(session.token)
        answer = _json(await self._described(None))
        answer.del_cookie(COOKIE, path="/")
        return answer

    # Streams and the page

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        session = await self._session(request)
        key, compute = self._views.live(session.viewer, request.query)
        messages = self._live.watch((id(session.viewer), *key), compute)
        return await send_stream(request, messages, is_open=lambda: self._viewers.is_open(session))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        found = self._files.get(path)
        if found is None or path.startswith("api/"):
            raise not_found("there is no such path")
        headers = {"Cache-Control": "no-cache", "ETag": f'"{found.etag}"'}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.content, content_type=found.content_type, charset=found.charset, headers=headers)


def _json(body: Json, *, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(body, separators=(",", ":")), content_type="application/json", status=status)


def _check_csrf(session: Session, request: web.Request) -> None:
    if not session.has_csrf_token(request.headers.get(CSRF_HEADER, "")):
        raise Refusal(403, "CSRF_TOKEN_MISSING", f"send the csrf_token of /api/session in the header {CSRF_HEADER}")


async def _body(request: web.Request) -> dict[str, object]:
    """The request's JSON object; Refusal."""
    if request.content_type != "application/json":
        raise Refusal(415, "UNSUPPORTED_MEDIA_TYPE", "send application/json")
    try:
        found = json.loads(await request.read())
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate is JSON, and no text
    except (ValueError, RecursionError):
        raise bad_request("the body is not JSON, or has text that is not Unicode") from None
    if not isinstance(found, dict):
        raise bad_request("the body must be a JSON object")
    return found


def _share_partition(request: web.Request) -> tuple[str, str, int]:
    found = request.match_info
    return found["group"], found["topic"], partition_of(found["partition"])
