"""Who may ask, and what every answer carries: a middleware around all routes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keepad.serve.assets import ASSETS
from keepad.serve.settings import ServeSettings, is_loopback

# What a browser may load without a token: the page itself, which holds no secret and then asks for it.
OPEN_PATHS = frozenset({*ASSETS, "/healthz", "/v2/health/live", "/v2/health/ready"})
_DRAIN_SECONDS = 5
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets in who may ask.

    With a token, every request must carry it. Without one the service listens on a loopback address only, where the
    danger is a foreign web page in the user's own browser: it is recognised by its Origin or Sec-Fetch-Site, and a
    foreign name that was made to point here (DNS rebinding) by Host.

    Args:
        app: The routes.
        settings: The settings.
        observe: Called with route, status and seconds of every request.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, observe: Callable[[str, int, float], None]) -> None:
        self._app, self._settings, self._observe = app, settings, observe
        self._secret = None if settings.token is None else settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        body = _Body(scope, receive, self._settings.limits.bytes)

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status != 408:  # what did not come in time will not come now
                    await body.drain()
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        try:
            await (refusal or self._app)(scope, body.receive, send_guarded)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._observe(route, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """The answer to a request that is not let in, or None."""
        headers = Headers(scope=scope)
        if self._secret is not None:
            if scope["path"] in OPEN_PATHS or self._knows_secret(headers.get("authorization", "")):
                return None
            sentence = "this service needs its token: send the header 'Authorization: Bearer TOKEN'."
            return JSONResponse({"error": sentence}, 401, {"WWW-Authenticate": 'Bearer realm="keepad"'})
        host = headers.get("host", "")
        if not self._is_own(host):
            return JSONResponse(
                {"error": "this service answers on its own address only; use the one that it printed."}, 421
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower() != f"{scope['scheme']}://{host}".lower()
        # A link to the page may come from anywhere; all else comes from the page itself or from no browser.
        if foreign or (headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/"):
            return JSONResponse({"error": "this service does not answer other web pages."}, 403)
        return None

    def _knows_secret(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        assert self._secret is not None
        # Compared in any case, and in constant time, so that neither the scheme nor the time tells anything.
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._secret)
        return same and scheme.lower() == "bearer"

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._settings.host.lower()


class _Body:
    """The body of a request, whose rest is read before an answer that did not need it.

    A connection that is closed with unread data resets, and takes the answer with it: a client would see a broken
    connection in place of 429 or 413.

    Args:
        scope: The request.
        receive: Gives the parts of its body.
        limit: Bytes that are read for nothing at most.
    """

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        headers = Headers(scope=scope)
        self._receive, self._limit = receive, limit
        # Such a client sends nothing before it is told to, so there is nothing to read.
        self._waits = "100-continue" in headers.get("expect", "").lower()
        self._over = "content-length" not in headers and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        """The next part of the body."""
        message = await self._receive()
        self._waits = False
        self._over = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read what is left, within a limit of bytes and of time."""
        if self._over or self._waits:
            return
        with anyio.move_on_after(_DRAIN_SECONDS):
            read = 0
            while not self._over and read <= self._limit:
                read += len((await self.receive()).get("body", b""))
