"""All pods of a benchmark in one process: takes connections, swallows what they send.

    python -m kpctl.bench.pod PORT

It listens at every address of its namespace and says so on standard output once it does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys

_BUFFER_BYTES = 1 << 20
_BACKLOG = 4096


def serve(port: int) -> None:
    """For ever."""
    ready = selectors.DefaultSelector()
    listener = socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
    listener.setblocking(False)
    ready.register(listener, selectors.EVENT_READ)
    print("listening", flush=True)
    buffer = bytearray(_BUFFER_BYTES)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                _accept(ready, listener)
            elif isinstance(key.fileobj, socket.socket):
                _swallow(ready, key.fileobj, buffer)


def _accept(ready: selectors.BaseSelector, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            ready.register(connection, selectors.EVENT_READ)


def _swallow(ready: selectors.BaseSelector, connection: socket.socket, buffer: bytearray) -> None:
    try:
        if connection.recv_into(buffer):
            return
    except BlockingIOError:
        return
    except OSError:
        pass  # The client hung up the hard way, as the benchmark's clients do.
    ready.unregister(connection)
    connection.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
