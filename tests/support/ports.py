"""A port for a server of another process, which is bound only later."""

from __future__ import annotations

import os
import socket

FIRST, COUNT = 20_000, 10_000  # below what systems give to whoever names no port: Linux 32768, the others 49152


def port_for_later() -> int:
    """A port of 127.0.0.1 that nobody listens at, and that the system gives to nobody who does not name it."""
    place = os.getpid()  # processes beside this one begin elsewhere
    while True:
        port, place = FIRST + place % COUNT, place + 1
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
