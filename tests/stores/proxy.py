# SPDX-License-Identifier: Apache-2.0
"""A proxy before an object store: counts requests, refuses them, cuts answers off, and answers late."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """What a client asked for."""

    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_listing(self) -> bool:
        """Whether it asks what is there below a prefix, or which uploads are under way."""
        return "prefix" in self.query or "list-type" in self.query


@dataclass(frozen=True)
class Answer:
    """
    What a client gets.

    :param cut: bytes after which the connection ends; None for all of them.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None


#: Gives an answer, or None to let the store answer.
Rule = Callable[[Request], Answer | None]
#: Changes what the store answered.
Change = Callable[[Request, Answer], Answer]


class Proxy(ThreadingHTTPServer):
    """
    Hands requests on to a store on this machine.

    :param upstream: port of the store.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.requests: list[Request] = []
        self.rule: Rule = lambda request: None
        self.change: Change = lambda request, answer: answer
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def answering(self, rule: Rule | None = None, change: Change | None = None) -> Iterator[None]:
        """Answer by a rule, or change answers, for a while."""
        self.rule, self.change = rule or self.rule, change or self.change
        try:
            yield
        finally:
            self.rule, self.change = lambda request: None, lambda request, answer: answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _handle(self) -> None:
        body = self._body()
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        request = Request(self.command, unquote(parts.path), query)
        with self.server.lock:
            self.server.requests.append(request)
        answer = self.server.rule(request) or self.server.change(request, self._ask(body))
        self._answer(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _handle

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            content = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _ask(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
        response = connection.getresponse()
        given = {name: value for name, value in response.getheaders() if name.lower() not in _HOP}
        if self.command == "HEAD":
            given["Content-Length"] = response.getheader("Content-Length") or "0"
        content = response.read()
        connection.close()
        return Answer(response.status, given, content)

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body)))
        elif "Content-Length" not in answer.headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        # A client may be gone once it has the headers of an answer without a body.
        if self.command != "HEAD" and answer.body:
            self.wfile.write(answer.body if answer.cut is None else answer.body[: answer.cut])
        if answer.cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing: the requests are kept."""
