"""Cuts what a server sends into replies: the answers of RESP2, the Redis protocol."""

from __future__ import annotations

from typing import Any


class ResponseError(Exception):
    """An error that the server answered. Its text begins with its code."""


class Replies:
    """Takes bytes as they come. A reply that is complete only in part is kept, and not read again from its beginning:
    a page of an inspection can have megabytes."""

    __slots__ = ("_rest", "_open")

    def __init__(self) -> None:
        self._rest = b""
        self._open: list[tuple[list[Any], int]] = []
        """The lists around the next value, with their sizes."""

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are complete now. An error is returned as an exception. Raises if it is something else than
        replies: then nothing that follows can be understood."""
        if self._rest:
            data = self._rest + data
        lists = self._open
        complete: list[Any] = []
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            kind, head, after = data[at], data[at + 1 : end], end + 2
            value: Any
            if kind == _INTEGER:
                value = int(head)
            elif kind == _BULK:
                size = int(head)
                if size < 0:
                    value = None
                else:
                    end = after + size
                    if len(data) < end + 2:
                        break
                    value, after = data[after:end], end + 2
            elif kind == _LIST:
                size = int(head)
                if size > 0:
                    lists.append(([], size))
                    at = after
                    continue
                value = None if size < 0 else []
            elif kind == _STATUS:
                value = head
            elif kind == _ERROR:
                value = ResponseError(head.decode("utf-8", "replace"))
            else:
                raise ConnectionError(f"Protocol Error: {data[at : at + 80]!r}")
            at = after
            while lists:
                values, size = lists[-1]
                values.append(value)
                if len(values) < size:
                    break
                lists.pop()
                value = values
            else:
                complete.append(value)
        self._rest = data[at:]
        return complete


_INTEGER, _BULK, _LIST, _STATUS, _ERROR = b":$*+-"
