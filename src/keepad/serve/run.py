"""Runs a service with uvicorn until it is told to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Generator

import uvicorn

from keepad.errors import KeepADError
from keepad.serve.app import create_app
from keepad.serve.service import Service

_BACKLOG = 512
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """A server for which a signal to stop, once it has stopped, is no error."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(service: Service) -> None:
    """Answer requests until SIGTERM or SIGINT; what is under way then is finished first.

    Raises:
        KeepADError: The address cannot be listened on.
    """
    settings = service.settings
    limits = settings.limits
    listening = open_socket(settings.host, settings.port)
    service.warm_up()
    host, port = listening.getsockname()[:2]
    config = uvicorn.Config(
        create_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=4 * limits.queue + 256,  # connections; far above what is answered with 429
        backlog=_BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        h11_max_incomplete_event_size=64_000,
    )
    shown = f"[{host}]" if ":" in host else host
    service.say(f"listening on http://{shown}:{port}/ (stop with Ctrl+C)")
    _Server(config).run(sockets=[listening])


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the address.

    Raises:
        KeepADError: There is no such address, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(_BACKLOG)  # from here on nobody is turned away, so the address can be announced
        except OSError:
            listening.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise KeepADError(f"cannot listen on {host} port {port}: {reason}; choose another --port or --host.") from error
    return listening
