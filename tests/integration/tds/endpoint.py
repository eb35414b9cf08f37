# SPDX-License-Identifier: Apache-2.0
"""
The other end of the driver's line: it speaks as much of SQL Server's protocol as a login and a batch need.

It answers as a test says, so that what no server gives on demand (a fail-over, a deadlock, a certificate that
nobody trusts) comes through the real driver, with its real texts. In a process of its own: the driver stops
ours as it connects.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

#: What the server says about encryption before the login; STRICT encrypts even that (TDS 8).
ENCRYPTS, ENCRYPTS_NOTHING, STRICT = 1, 2, 8
OK = "ok"
#: The line is cut instead of an answer.
CUT = "cut"
#: Nothing is answered.
SILENCE = "silence"
_PRELOGIN, _ANSWER = 0x12, 0x04
_READ_ONLY_INTENT = 0x20
_HEADER = struct.Struct(">BBHHBB")


@dataclass(frozen=True)
class Refusal:
    """An error of the server; ``number`` and ``text`` as SQL Server has them."""

    number: int
    text: str


Answer = str | Refusal


@dataclass(frozen=True)
class Script:
    """
    What is answered, in order; the last answer counts for all that follow.

    :param certificate: file with certificate and key, where the endpoint encrypts.
    """

    logins: tuple[Answer, ...] = (OK,)
    batches: tuple[Answer, ...] = (OK,)
    encryption: int = ENCRYPTS_NOTHING
    certificate: str = ""


class Endpoint:
    """A port on loopback that a driver can log in to."""

    def __init__(self, script: Script) -> None:
        self._orders, orders = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(script, orders), daemon=True)
        self._process.start()
        self.port: int = self._orders.recv()

    def seen(self) -> list[dict[str, Any]]:
        """Return each login (``user``, ``is_read_only``, …) and each ``batch`` since the last question."""
        self._orders.send("seen")
        seen: list[dict[str, Any]] = self._orders.recv()
        return seen

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join()


@contextmanager
def endpoint(**script: Any) -> Iterator[Endpoint]:
    """Open an endpoint, and end it; the parameters are those of :class:`Script`."""
    one = Endpoint(Script(**script))
    try:
        yield one
    finally:
        one.close()


def _serve(script: Script, orders: Connection) -> None:
    seen: list[dict[str, Any]] = []
    scripts = {"logins": list(script.logins), "batches": list(script.batches)}
    listener = socket.create_server(("127.0.0.1", 0))
    orders.send(listener.getsockname()[1])

    def accept() -> None:
        while True:
            line, _ = listener.accept()
            threading.Thread(target=_Talk(line, script, scripts, seen).run, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while orders.recv() == "seen":
        orders.send(list(seen))
        seen.clear()


class _Talk:
    """One connection."""

    def __init__(
        self,
        line: socket.socket,
        script: Script,
        scripts: dict[str, list[Answer]],
        seen: list[dict[str, Any]],
    ) -> None:
        self.line = line
        self.script = script
        self.scripts = scripts
        self.seen = seen
        self.tls: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO] | None = None

    def run(self) -> None:
        with suppress(OSError, ssl.SSLError, struct.error), self.line:
            while self.scripts["logins"][0] == SILENCE and self.line.recv(1 << 16):
                pass
            if self.script.encryption == STRICT:
                self._handshake(is_bare=True)
            self._message()
            self._send(_prelogin(ENCRYPTS if self.tls else self.script.encryption))
            if self.script.encryption == ENCRYPTS:
                self._handshake()
            self.seen.append(_login(self._message()))
            goes_on = self._answer(self._next("logins"), _LOGGED_IN, is_login=True)
            while goes_on and (batch := self._message()):
                # After its headers, whose length comes first.
                text = batch[struct.unpack("<I", batch[:4])[0] :].decode("utf-16le")
                self.seen.append({"batch": text})
                goes_on = self._answer(self._next("batches"), _DONE)

    def _next(self, kind: str) -> Answer:
        answers = self.scripts[kind]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _answer(self, answer: Answer, ok: bytes, *, is_login: bool = False) -> bool:
        """Answer; return whether the conversation goes on."""
        if isinstance(answer, Refusal):
            self._send(_error(answer) + _FAILED)
            return not is_login
        if answer == CUT:
            return False
        self._send(ok)
        return True

    def _handshake(self, *, is_bare: bool = False) -> None:
        """Shake hands; unless bare, in packets of the protocol."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["tds/8.0"])
        context.load_cert_chain(self.script.certificate)
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(into, out, server_side=True)
        while self.tls is None:
            done = False
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                done = True
            if data := out.read():
                self.line.sendall(data if is_bare else _packet(_PRELOGIN, data))
            if done:
                self.tls = (tls, into, out)
                return
            more = self.line.recv(1 << 16) if is_bare else self._message()
            if not more:
                raise ssl.SSLError("the driver went away")
            into.write(more)

    def _message(self) -> bytes:
        """Read a message of one or more packets."""
        message = b""
        while True:
            header = self._read(_HEADER.size)
            if len(header) < _HEADER.size:
                return b""
            _, status, length, *_ = _HEADER.unpack(header)
            message += self._read(length - _HEADER.size)
            if status & 1:
                return message

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._some(size - len(data))
            if not more:
                return data
            data += more
        return data

    def _some(self, size: int) -> bytes:
        if self.tls is None:
            return self.line.recv(size)
        tls, into, _ = self.tls
        while True:
            try:
                return tls.read(size)
            except ssl.SSLWantReadError:
                data = self.line.recv(1 << 16)
                if not data:
                    return b""
                into.write(data)

    def _send(self, tokens: bytes) -> None:
        packet = _packet(_ANSWER, tokens)
        if self.tls is not None:
            tls, _, out = self.tls
            tls.write(packet)
            packet = out.read()
        self.line.sendall(packet)


def _packet(kind: int, data: bytes) -> bytes:
    return _HEADER.pack(kind, 1, len(data) + _HEADER.size, 0, 1, 0) + data


def _prelogin(encryption: int) -> bytes:
    """Return the options version, encryption, instance, thread and MARS."""
    values = (b"\x10\x00\x03\xe8\x00\x00", bytes([encryption]), b"\x00", b"", b"\x00")
    head, data, start = b"", b"", 5 * len(values) + 1
    for option, value in enumerate(values):
        head += struct.pack(">BHH", option, start + len(data), len(value))
        data += value
    return head + b"\xff" + data


def _login(message: bytes) -> dict[str, Any]:
    """Read what a test wants to know of a login: its flags, and the texts behind offsets."""
    texts = {}
    for number, name in enumerate(("machine", "user", "password", "application", "server")):
        start, length = struct.unpack_from("<HH", message, 36 + 4 * number)
        texts[name] = message[start : start + 2 * length].decode("utf-16le", "replace")
    del texts["password"]
    (packet_size,) = struct.unpack_from("<I", message, 8)
    return {**texts, "is_read_only": bool(message[26] & _READ_ONLY_INTENT), "packet_size": packet_size}


def _text(text: str, length: str) -> bytes:
    return struct.pack(length, len(text)) + text.encode("utf-16le")


def _error(refusal: Refusal) -> bytes:
    body = struct.pack("<iBB", refusal.number, 1, 14) + _text(refusal.text, "<H")
    body += _text("endpoint", "<B") + _text("", "<B") + struct.pack("<i", 1)
    return b"\xaa" + struct.pack("<H", len(body)) + body


def _done(status: int) -> bytes:
    return b"\xfd" + struct.pack("<HHQ", status, 0, 0)


_FAILED, _DONE = _done(2), _done(0)


def _acknowledge() -> bytes:
    body = b"\x01\x74\x00\x00\x04" + _text("endpoint", "<B") + b"\x10\x00\x03\xe8"
    return b"\xad" + struct.pack("<H", len(body)) + body + _DONE


_LOGGED_IN = _acknowledge()
