"""The URL of a lock file, and the path of the default one.

Everything in a URL is understood or refused: if a part were ignored, two processes could lock in two files.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Mapping, Optional
from urllib.parse import quote

from ...core.secrets import redacted_url
from ...errors import InvalidArgumentError, StoreError
from .._shared.url import decoded, refuse_control_characters

IN_MEMORY = "a SQLite database in memory excludes no other process; use memory: for locks within one process"


def sqlite_path(url: str, platform: str = sys.platform) -> Optional[str]:
    """The path in `sqlite:relative/path`, `sqlite:/absolute/path` or `sqlite:///absolute/path`, percent-encoding undone
    once. None for `sqlite:` alone. Raises `InvalidArgumentError` for everything else."""
    refuse_control_characters(url)
    if url[:7].lower() != "sqlite:":
        raise InvalidArgumentError("url", redacted_url(url), "sqlite: followed by the path of a file")
    rest = url[len("sqlite:") :]
    if rest == "":
        return None
    if "?" in rest or "#" in rest:
        raise InvalidArgumentError(
            "url", redacted_url(url), "without parameters: in a file name, ? is written %3F and # is written %23"
        )
    if rest[:5].lower() == "file:":
        raise InvalidArgumentError(
            "url", redacted_url(url), "sqlite:relative/path or sqlite:/absolute/path, and no file: URL"
        )
    if rest.startswith("///"):
        rest = rest[2:]
    elif rest.startswith("//"):
        name = "…" if "@" in rest or ":" in rest else rest[2:]
        rule = f"sqlite:{name} for a path in the working folder, or sqlite:///{name} for one from the root"
        raise InvalidArgumentError("url", redacted_url(url), rule)
    path = decoded("url path", rest)
    if path in (":memory:", "/:memory:"):
        raise StoreError(IN_MEMORY, retryable=False)
    if "\0" in path or path.endswith("/"):
        raise InvalidArgumentError("url path", path, "the path of a file, without NUL")
    return re.sub("^/(?=[A-Za-z]:)", "", path) if platform == "win32" else path


def sqlite_url(path: str) -> str:
    """The URL of an absolute path."""
    return "sqlite:" + re.sub("[%?#\x00-\x1f\x7f]", lambda found: quote(found[0]), path)


def default_path(env: Optional[Mapping[str, str]] = None, platform: str = sys.platform) -> str:
    """The path of the embedded default: one file for each user of a machine, in the folder for state that is not
    configuration. The TypeScript client has the same."""
    return os.path.join(_state_folder(os.environ if env is None else env, platform), "holdfast", "locks.db")


def _state_folder(env: Mapping[str, str], platform: str) -> str:
    if platform == "win32":
        return env.get("LOCALAPPDATA") or os.path.join(_home(), "AppData", "Local")
    # The specification says to ignore a relative path. It would give every working folder its own locks.
    state = env.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return state
    if platform == "darwin":
        return os.path.join(_home(), "Library", "Application Support")
    return os.path.join(_home(), ".local", "state")


def _home() -> str:
    return str(Path.home())
