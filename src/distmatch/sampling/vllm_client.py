"""HTTP to one vLLM server: JSON in and out, retries with back-off, and a watch that notices its death."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

FIRST_PAUSE = 0.25
"""Seconds before the first retry; doubled each time, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 4.0
CONNECT_TIMEOUT = 5.0
"""Seconds until a server must take a connection."""
HEALTH_TIMEOUT = 5.0
"""Seconds that the health check may take."""


class ServerError(Exception):
    """A server is dead, refused a request, or answered nonsense; the message is a sentence's beginning."""


class Refused(ServerError):
    """The server understood a request and did not take it (a status of 400 to 499)."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.status = status


class Host:
    """One server. Its methods may be called from many threads.

    Args:
        url: Such as http://node7:8000.
        patience: Seconds without an answer after which the server counts as dead.

    Raises:
        ValueError: Not a URL of that form.
    """

    def __init__(self, url: str, patience: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"sampler.hosts: {url!r} is no address such as http://node7:8000")
        if parts.path.rstrip("/").endswith("/v1"):
            raise ValueError(f"sampler.hosts: {url!r} is written without /v1, as in http://node7:8000")
        self.url = url.rstrip("/")
        self._secure, self._address = parts.scheme == "https", (parts.hostname, parts.port)
        self._path = parts.path.rstrip("/")
        self._patience = patience
        self._healthy_at = time.monotonic()
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._aborted = False

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float
    ) -> dict[str, Any]:
        """Send a request until it is answered.

        Args:
            method: GET or POST.
            path: With its leading slash.
            body: Sent as JSON.
            timeout: Seconds for one answer.

        Raises:
            Refused: A status of 400 to 499.
            ServerError: Nothing but failures for `patience` seconds, or no answer for a longer `timeout`.
        """
        failing_since, pause = 0.0, FIRST_PAUSE
        while True:
            try:
                return self._once(method, path, body, timeout)
            except (OSError, http.client.HTTPException, _Broken) as error:
                failing_since = failing_since or time.monotonic()
                hopeless = isinstance(error, TimeoutError) and timeout > self._patience
                if hopeless or self._aborted or time.monotonic() + pause > failing_since + self._patience:
                    words = _words(error)
                    raise ServerError(f"the vLLM server {self.url} does not answer ({words})") from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def watch(self) -> None:
        """Ask for the server's health; any answer since the last time is as good.

        Raises:
            ServerError: It has not answered anything for `patience` seconds.
        """
        try:
            self._once("GET", "/health", None, HEALTH_TIMEOUT)
        except (OSError, http.client.HTTPException, _Broken, Refused) as error:
            if time.monotonic() - self._healthy_at > self._patience:
                raise ServerError(f"the vLLM server {self.url} is dead ({_words(error)})") from error

    def start_watch(self) -> None:
        """Count `patience` from now on."""
        self._healthy_at = time.monotonic()
        self._aborted = False

    def abort(self) -> None:
        """Make every call that is waiting fail now, so that no thread outlives the run."""
        self._aborted = True
        with self._lock:
            waiting = list(self._open)
        for connection in waiting:
            if connection.sock is not None:
                with suppress(OSError):  # it may have ended by itself just now
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=CONNECT_TIMEOUT)
        content = None if body is None else json.dumps(body)
        try:
            connection.connect()
            connection.sock.settimeout(timeout)
            with self._lock:
                if self._aborted:
                    raise ConnectionAbortedError("another request failed")
                self._open.add(connection)
            connection.request(method, self._path + path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", errors="replace")
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        if answer.status >= 500:
            raise _Broken(f"status {answer.status}: {_message(text)}")
        if answer.status >= 400:
            raise Refused(f"the vLLM server {self.url} refused {path}: {_message(text)}", answer.status)
        self._healthy_at = time.monotonic()
        return _decoded(text)


class _Broken(Exception):
    """The server failed at a request, which may be tried again."""


def _decoded(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise _Broken(f"an answer that is no JSON: {text[:80]!r}") from error
    return value if isinstance(value, dict) else {"value": value}


def _message(text: str) -> str:
    """What vLLM says in an error, whose form depends on where it arose."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text[:300]
    inner = value.get("error", value) if isinstance(value, dict) else value
    return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:300]


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
