"""Stands between a client and a server on loopback: slow, or hangs up after so many bytes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from itertools import repeat


class Relay:
    """Carries connections to the server at `target`, a URL; clients use `url`."""

    def __init__(self, target: str, *, piece: int = 1 << 16) -> None:
        """What the server sends is passed on in pieces of this many bytes."""
        self._host, _, port = target.removeprefix("http://").partition(":")
        self._port = int(port)
        self._piece = piece
        self.limits: Iterator[float] = repeat(math.inf)
        """For each next connection: after how many bytes of the server it is cut."""
        self.cuts = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, self._host, 0)
        self.url = f"http://{self._host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        upward = asyncio.create_task(self._upward(reader, far_writer))
        try:
            with contextlib.suppress(OSError):
                await self._downward(far_reader, writer, next(self.limits))
        finally:
            upward.cancel()
            writer.close()
            far_writer.close()

    async def _upward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def _downward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: float
    ) -> None:
        while limit > 0 and (data := await reader.read(int(min(limit, self._piece)))):
            limit -= len(data)
            writer.write(data)
            await writer.drain()
        self.cuts += limit <= 0
