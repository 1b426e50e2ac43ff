"""Keeps passwords out of errors. The core needs it, too, so it is there."""

from __future__ import annotations

from ...core.secrets import message_of as message_of
from ...core.secrets import redacted_url as redacted_url
from ...core.secrets import safe_cause as safe_cause
from ...core.secrets import without_secrets as without_secrets
