# SPDX-License-Identifier: Apache-2.0
"""Servers on loopback that repeat what they are told, or speak garbage, as the worst of them do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def garbage_server() -> Iterator[int]:
    """Answer every client with garbage and hang up; gives the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with suppress(OSError), client:
                    client.recv(65_536)
                    client.sendall(b"garbage" * 100)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Wakes the thread, which a close alone would not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


class _Repeating(BaseHTTPRequestHandler):
    """Refuses each request, and repeats it in the refusal."""

    def do_GET(self) -> None:
        body = f"refused: {self.command} {self.path} {self.headers}".encode()
        self.server.requests.append(body)  # ours, below
        self.send_response(403, f"refused {self.path}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def repeating_server() -> Iterator[tuple[int, list[bytes]]]:
    """Refuse all HTTP requests, and repeat them in the refusal; gives the port, and what was asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Repeating)
    server.requests = []  # for the handler
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], server.requests  # as above
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
