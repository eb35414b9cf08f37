# SPDX-License-Identifier: Apache-2.0
"""A line to the server that a test can cut, in a process of its own: the driver stops ours as it connects."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection


class Line:
    """
    A port on loopback that passes everything on to a server, until it is told to cut what is open.

    :param server: host and port.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self._orders, orders = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(server, orders), daemon=True)
        self._process.start()
        self.port: int = self._orders.recv()

    def _order(self, name: str, *arguments: int) -> int:
        self._orders.send((name, *arguments))
        return int(self._orders.recv() or 0)

    def requests(self) -> int:
        """
        Return how many messages went to the server since this was last asked.

        What one side says before the other answers is one, however many pieces it comes in.
        """
        return self._order("requests")

    def cut_after(self, messages: int) -> None:
        """
        Cut after so many more messages of either side.

        A request that is cut still reaches the server, which works on it; an answer is lost.
        """
        self._order("cut_after", messages)

    def was_cut(self) -> bool:
        """Say whether the cut that was ordered has come; lets all pass from now on."""
        return bool(self._order("was_cut"))

    def cut(self) -> None:
        """Cut all that is open now."""
        self._order("cut")

    def close(self) -> None:
        """Take the line up."""
        self._process.terminate()
        self._process.join()


def _serve(server: tuple[str, int], orders: Connection) -> None:
    end = _End(server)
    orders.send(end.port)
    while True:
        name, *arguments = orders.recv()
        orders.send(getattr(end, name)(*arguments))


class _End:
    """The line itself."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        #: Messages until the cut; None lets all pass.
        self._left: int | None = None
        self._requests = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, messages: int) -> None:
        with self._lock:
            self._left = messages

    def was_cut(self) -> bool:
        with self._lock:
            was_cut = self._left is not None and self._left < 0
            self._left = None
            return was_cut

    def requests(self) -> int:
        with self._lock:
            requests, self._requests = self._requests, 0
            return requests

    def cut(self) -> None:
        with self._lock:
            self._cut()

    def _cut(self) -> None:
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server, timeout=10)
                far.settimeout(None)
                with self._lock:
                    self._open += [near, far]
                is_asked = threading.Event()
                for source, sink, is_request in ((near, far, True), (far, near, False)):
                    arguments = (source, sink, is_request, is_asked)
                    threading.Thread(target=self._pass, args=arguments, daemon=True).start()

    def _pass(
        self, source: socket.socket, sink: socket.socket, is_request: bool, is_asked: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                self._count(is_request, is_asked)
                if not self._send(sink, data, is_request):
                    return
            with self._lock:
                sink.shutdown(socket.SHUT_WR)

    def _count(self, is_request: bool, is_asked: threading.Event) -> None:
        """Count a request at its first piece; the answer makes room for the next one."""
        with self._lock:
            self._requests += is_request and not is_asked.is_set()
        if is_request:
            is_asked.set()
        else:
            is_asked.clear()

    def _send(self, sink: socket.socket, data: bytes, is_request: bool) -> bool:
        """Send a message on, or cut instead; return whether the line still stands."""
        with self._lock:
            if self._left is not None and self._left >= 0:
                self._left -= 1
                if self._left < 0:
                    if is_request:
                        sink.sendall(data)
                    self._cut()
                    return False
        # Not under the lock: who does not read holds up this thread alone, and it can be cut meanwhile.
        sink.sendall(data)
        return True


@contextmanager
def line_to(server: tuple[str, int]) -> Iterator[Line]:
    """Lay a line, and take it up again."""
    line = Line(server)
    try:
        yield line
    finally:
        line.close()


def cut_everywhere(line: Line, prepare: Callable[[int], None], call: Callable[[int], None]) -> Iterator[int]:
    """
    Cut at each message of a call, one after the other, until it ends without having been cut.

    :param prepare: is given the number of the cut; what it does is not cut.
    :param call: is cut.
    :return: the number of each cut, after it, for the caller to look at what it left.
    """
    number = 0
    while True:
        prepare(number)
        line.cut_after(number)
        call(number)
        is_cut = line.was_cut()
        yield number
        if not is_cut:
            return
        number += 1
