"""A TCP proxy that holds bytes back, goes silent or cuts connections, between a client and a server."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import List, Optional, Set, Tuple, Type


class TcpProxy:
    """`async with TcpProxy(port) as proxy:` listens on `proxy.port`."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        """Where new connections lead."""
        self._open = {"to_server": asyncio.Event(), "to_client": asyncio.Event()}
        for gate in self._open.values():
            gate.set()
        self._cut_after: Optional[Tuple[bytes, asyncio.Event]] = None
        self._writers: Set[asyncio.StreamWriter] = set()
        self._tasks: List["asyncio.Task[None]"] = []
        self.port = 0

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self, direction: str) -> None:
        """Keeps everything that is sent `to_server` or `to_client` from now on."""
        self._open[direction].clear()

    def release(self, direction: str) -> None:
        self._open[direction].set()

    def go_silent(self) -> None:
        """As a network that drops all packets: nothing comes back, and there is no error."""
        self.hold("to_server")
        self.hold("to_client")

    def cut(self) -> None:
        """Ends all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, text: str) -> asyncio.Event:
        """Ends a connection when this has been forwarded to the server. Nothing more reaches the client."""
        done = asyncio.Event()
        self._cut_after = (text.encode(), done)
        return done

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        self._writers |= {writer, server_writer}
        self._tasks += [
            asyncio.ensure_future(self._forward(reader, server_writer, "to_server", writer)),
            asyncio.ensure_future(self._forward(server_reader, writer, "to_client", writer)),
        ]

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str, client: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                data = await reader.read(65_536)
                await self._open[direction].wait()
                if not data:
                    break
                is_last = direction == "to_server" and self._cut_after is not None and self._cut_after[0] in data
                if is_last:
                    client.transport.abort()
                writer.write(data)
                await writer.drain()
                if is_last and self._cut_after is not None:
                    self._cut_after[1].set()
                    self._cut_after = None
        except OSError:
            pass
        finally:
            writer.close()
