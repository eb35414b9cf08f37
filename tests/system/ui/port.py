# SPDX-License-Identifier: Apache-2.0
"""The port of the UI: what the user asked for, checked before anything is started."""

from __future__ import annotations

import errno
import socket

from tests.system.processes import HomeError

MAX_PORT = 65_535


def parse_port(text: str) -> int:
    """
    Return the port that a text names.

    :raises HomeError: it names none.
    """
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PORT:
        return int(text)
    raise HomeError(
        f"PORT must be a number from 1 to {MAX_PORT}, not {text!r}; for example: make ui PORT=9090"
    )


def check_free(port: int) -> None:
    """
    Refuse a port that cannot be listened to on 127.0.0.1.

    :raises HomeError: it is taken, or this user may not have it; with a port to take instead.
    """
    if (number := _try(port)) == 0:
        return
    other = next((port for port in range(max(port + 1, 8080), MAX_PORT) if _try(port) == 0), 9090)
    reason = {
        errno.EADDRINUSE: "another program listens to it",
        errno.EACCES: "ports below 1024 are for the administrator",
    }.get(number, f"error {errno.errorcode.get(number, number)}")
    raise HomeError(f"Port {port} cannot be had: {reason}. Choose another one: make ui PORT={other}")


def _try(port: int) -> int:
    """Return 0, or the error number."""
    with socket.socket() as probe:
        # As the API server does: connections of an earlier start that are still winding up do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0
