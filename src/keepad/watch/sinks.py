"""Sinks: where messages go. A file with one JSON object per line, a webhook, an MQTT topic."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from keepad.errors import KeepADError
from keepad.version import __version__

if TYPE_CHECKING:
    from paho.mqtt.client import Client

_TIMEOUT = 10.0  # seconds for one message
_TAIL = 1 << 20  # bytes at the end of a file that surely hold its last line
_NEVER = (400, 413, 415, 422)  # HTTP: the same message will not be taken another time


class DeliveryError(Exception):
    """A message did not arrive; it may later."""


class RefusedError(DeliveryError):
    """The receiver got the message and does not take it."""


class Sink(Protocol):
    """Takes messages one by one, in order."""

    name: str

    def deliver(self, message: dict[str, Any]) -> None:
        """Hand over one message, or raise a DeliveryError; it may come again with the same `id`."""

    def close(self) -> None:
        """Let go of files and connections."""


def sink_of(text: str) -> Sink:
    """The sink that `--to` names: `jsonl:FILE`, `webhook:URL` or `mqtt://host/topic`.

    Raises:
        KeepADError: It names none.
    """
    kind, _, rest = text.partition(":")
    if kind == "jsonl" and rest:
        return JsonlSink(None if rest == "-" else Path(rest))
    if kind == "webhook" and urlsplit(rest).scheme in ("http", "https") and urlsplit(rest).hostname:
        return WebhookSink(rest)
    if kind in ("mqtt", "mqtts") and rest.startswith("//"):
        return MqttSink(text)
    raise KeepADError(
        f"results cannot go to {without_password(text)!r}; use jsonl:FILE, webhook:https://host/path or "
        "mqtt://host/topic."
    )


def without_password(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"//[^/@]*@", "//", url)


class JsonlSink:
    """A file with one JSON object per line, each message exactly once; standard output for None."""

    def __init__(self, path: Path | None) -> None:
        self.name = f"jsonl:{'-' if path is None else os.path.abspath(path)}"
        self._path = path
        self._file: IO[bytes] | None = None
        self._last: str | None = None

    def deliver(self, message: dict[str, Any]) -> None:
        line = json.dumps(message) + "\n"
        if self._path is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            if self._file is None:
                self._file, self._last = _open_lines(self._path)
            if self._last is None or not _is_later(message["id"], self._last):
                return  # written before the journal could note it
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._last = message["id"]
        except OSError as error:
            self.close()  # half a line may be in the file; it is cut off when it is opened again
            raise DeliveryError(f"{self._path}: {error.strerror}") from error

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # a full disk again
                file.close()


def _open_lines(path: Path) -> tuple[IO[bytes], str]:
    """The file, opened for more lines, and the id of its last message; a torn last line is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    lines = file.read().split(b"\n")
    file.truncate(size - len(lines[-1]))
    try:
        return file, str(json.loads(lines[-2])["id"])
    except (IndexError, ValueError, KeyError, TypeError):
        return file, ""


def _is_later(own: str, last: str) -> bool:
    """Whether a message comes after another; always if that is of another journal."""
    name, _, number = own.rpartition("-")
    other, _, before = last.rpartition("-")
    return name != other or not before.isdecimal() or int(number) > int(before)


class WebhookSink:
    """HTTP POST of each message as JSON; 2xx means that it arrived. `Idempotency-Key` is its id."""

    def __init__(self, url: str) -> None:
        self.name = f"webhook:{without_password(url).partition('?')[0]}"  # a query may hold a token
        self._url = url

    def deliver(self, message: dict[str, Any]) -> None:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": str(message["id"]),
            "User-Agent": f"keepad/{__version__}",
        }
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers, method="POST")
        try:
            with _opener.open(request, timeout=_TIMEOUT) as answer:
                answer.read(1 << 16)
        except urllib.error.HTTPError as error:
            kind = RefusedError if error.code in _NEVER else DeliveryError
            raise kind(f"{self.name} answers {error.code} {error.reason}") from error
        except (OSError, ValueError) as error:  # ValueError: an answer that is no HTTP
            raise DeliveryError(f"{self.name}: {getattr(error, 'reason', error)}") from error

    def close(self) -> None:
        pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET and lose the message."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


class MqttSink:
    """An MQTT topic, quality of service 1: `mqtt://[user:password@]host[:port]/topic`, `mqtts://` with TLS."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        topic = unquote(parts.path.lstrip("/"))
        try:
            port = parts.port
        except ValueError:
            port = 0
        if not parts.hostname or not topic or port == 0 or "#" in url or set(topic) & set("+#\0"):
            raise KeepADError(
                f"{without_password(url)!r} names no MQTT topic; write mqtt://host[:port]/topic without + and #."
            )
        try:
            import paho.mqtt.client  # noqa: F401 - a missing package is reported before the first image
        except ImportError as error:
            raise KeepADError("MQTT needs paho-mqtt; pip install 'keepad[watch]' brings it.") from error
        self.name = without_password(url)
        self._tls = parts.scheme == "mqtts"
        self._address = parts.hostname, port or (8883 if self._tls else 1883)
        self._login = unquote(parts.username or ""), unquote(parts.password or "")
        self._topic = topic
        self._client: Client | None = None

    def deliver(self, message: dict[str, Any]) -> None:
        try:
            client = self._client or self._connected()
            sent = client.publish(self._topic, json.dumps(message), qos=1)
            sent.wait_for_publish(_TIMEOUT)
            if not sent.is_published():
                raise DeliveryError(f"{self.name} does not confirm messages")
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise DeliveryError(f"{self.name}: {error}") from error
        except DeliveryError:
            self.close()
            raise

    def _connected(self) -> Client:
        from paho.mqtt import client as mqtt
        from paho.mqtt.enums import CallbackAPIVersion

        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"keepad-{secrets.token_hex(6)}")
        if self._login[0]:
            client.username_pw_set(*self._login)
        if self._tls:
            client.tls_set()
        answered, answers = threading.Event(), list[Any]()

        def on_connect(_: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            answers.append(reason)
            answered.set()

        client.on_connect = on_connect
        client.connect_timeout = _TIMEOUT
        self._client = client
        client.connect(*self._address, keepalive=30)
        client.loop_start()
        if not answered.wait(_TIMEOUT):
            raise DeliveryError(f"{self.name} does not answer")
        if answers[0].is_failure:
            raise DeliveryError(f"{self.name} refuses the connection: {answers[0]}")
        return client

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.disconnect()
            client.loop_stop()
