"""The fencing guard for data in Redis, for code without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from ..core.fencing import Token
from .portal import portal

if TYPE_CHECKING:
    from ..drivers._redis.fence import RedisFence

__all__ = ["SyncRedisFence"]

Text = Union[str, bytes]


class SyncRedisFence:
    """Made by `sync_redis_fence`. Like `RedisFence`, without await: the methods raise the same errors."""

    def __init__(self, inner: RedisFence) -> None:
        self._inner = inner

    def set(self, key: Text, value: Text, token: Token, *options: Text) -> Any:
        """Runs `SET key value …options`, unless a larger token has been seen for this key. Returns the reply."""
        return portal().run(self._inner.set(key, value, token, *options))

    def run(
        self,
        script: str,
        *,
        token: Token,
        keys: Sequence[Text],
        args: Sequence[Text] = (),
        resource: Optional[Text] = None,
    ) -> Any:
        """Runs a Lua script of yours, unless a larger token has been seen for `resource`, by default the first key."""
        return portal().run(self._inner.run(script, token=token, keys=keys, args=args, resource=resource))

    def accept(self, resource: str, token: Token) -> None:
        """Only checks and records the token. `set` and `run` check and write in one step."""
        portal().run(self._inner.accept(resource, token))

    def reset(self, resource: str) -> bool:
        """Forgets the largest token, so that any next token is accepted. True if a token had been recorded."""
        return portal().run(self._inner.reset(resource))

    def close(self) -> None:
        """Ends the connection of the guard's own. It never closes your client."""
        portal().run(self._inner.close())
