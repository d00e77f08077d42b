"""Who may ask, and what every answer carries: a middleware around all routes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keepad.serve.assets import ASSETS
from keepad.serve.settings import ServeSettings, is_loopback

# What a browser may load without a token: the page itself, which holds no secret and then asks for it.
OPEN_PATHS = frozenset({*ASSETS, "/healthz", "/v2/health/live", "/v2/health/ready"})
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

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        try:
            await (refusal or self._app)(scope, receive, send_guarded)
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
