"""All pods of a benchmark in one process, which accepts connections and discards their data.

    python -m kpctl.bench.pod PORT [--names]

It listens at every address of its namespace and prints a line on standard output once it does. With
`--names` each connection first gets the four bytes of the address that it was made to.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys

_BUFFER_BYTES = 1 << 20
_BACKLOG = 4096


def serve(port: int, *, names: bool = False) -> None:
    """Serve until killed."""
    ready = selectors.DefaultSelector()
    listener = socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
    listener.setblocking(False)
    ready.register(listener, selectors.EVENT_READ)
    print("listening", flush=True)
    buffer = bytearray(_BUFFER_BYTES)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                _accept(ready, listener, names=names)
            elif isinstance(key.fileobj, socket.socket):
                _discard(ready, key.fileobj, buffer)


def _accept(ready: selectors.BaseSelector, listener: socket.socket, *, names: bool) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            if names:
                with contextlib.suppress(OSError):
                    connection.send(socket.inet_aton(connection.getsockname()[0]))
            ready.register(connection, selectors.EVENT_READ)


def _discard(ready: selectors.BaseSelector, connection: socket.socket, buffer: bytearray) -> None:
    try:
        if connection.recv_into(buffer):
            return
    except BlockingIOError:
        return
    except OSError:
        pass  # The benchmark's clients end their connections with a reset.
    ready.unregister(connection)
    connection.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), names="--names" in sys.argv)
