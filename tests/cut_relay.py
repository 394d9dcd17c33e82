"""A TCP relay: what passes it can be swallowed, and nothing is closed.

Either side then believes the other one silent, as when a network is cut between two hosts. It also
stands for a proxy whose server is replaced by another one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from django.db import connection

_PIECE_BYTES = 64 * 1024


class CutRelay:
    """Passes bytes on, both ways, until ``cut``; after ``heal`` connections that lost some end.

    ``host`` is a name or the folder of a Unix socket of PostgreSQL's.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: Where it listens.
        self.at = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def turn_to(self, port: int) -> None:
        """Take new connections to another port; those that are open stay."""
        self._port = port

    def cut(self) -> None:
        self._passes.clear()

    def heal(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self.heal()
        for one in (self._listener, *self._sockets):
            _end(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._reach_server()
                except OSError:
                    _end(client)
                    continue
                self._sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _reach_server(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        is_whole = True
        with suppress(OSError):
            while is_whole or not self._passes.is_set():
                piece = source.recv(_PIECE_BYTES)
                if not piece:
                    break
                is_whole = is_whole and self._passes.is_set()
                if is_whole:
                    target.sendall(piece)
        # That a side has ended does not arrive either.
        self._passes.wait()
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def open_relay(host: str, port: int) -> Iterator[CutRelay]:
    relay = CutRelay(host, port)
    try:
        yield relay
    finally:
        relay.close()


@contextmanager
def open_database_relay() -> Iterator[tuple[CutRelay, str]]:
    """A relay to the database of the test that runs, and the database's address by it."""
    settings: dict[str, Any] = connection.settings_dict
    user, password = quote(settings["USER"]), quote(settings["PASSWORD"] or "")
    with open_relay(settings["HOST"], int(settings["PORT"] or 5432)) as relay:
        yield relay, f"postgresql://{user}:{password}@{relay.at}/{settings['NAME']}"
