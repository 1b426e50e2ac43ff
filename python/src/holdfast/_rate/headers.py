"""The HTTP header fields of a rate limiter."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Optional, Sequence

from ..core.arguments import check_whole
from ..errors import InvalidArgumentError
from .limits import MAX_UNITS, Rate, RateLimitResult

_NAME = re.compile(r"[ !#-\[\]-~]+", re.ASCII)


class RateLimitHeaders:
    """The HTTP header fields of a limiter, as in draft-ietf-httpapi-ratelimit-headers-11.

        headers = RateLimitHeaders(limiter.limits)
        result = await limiter.consume(f"api:{user}")
        response.headers.update(headers.fields(result))
        if not result:
            return JSONResponse(headers.problem(result), status_code=429, media_type="application/problem+json")

    `names` are the names of the limits in the fields, one for each. The default is `default` for one limit, and
    `per-60s` and the like for several.
    """

    def __init__(self, limits: Sequence[Rate], *, names: Optional[Sequence[str]] = None) -> None:
        self._names = _checked_names([_name(each, len(limits)) for each in limits] if names is None else names, limits)
        self.policy = ", ".join(f'"{name}"{_policy(each)}' for name, each in zip(self._names, limits))
        """`RateLimit-Policy`: the same in every response."""

    def __repr__(self) -> str:
        return f"<RateLimitHeaders {self.policy}>"

    def fields(self, result: RateLimitResult, *, cost: int = 1) -> dict[str, str]:
        """All fields of a response. While a fallback answers, these limits do not apply, so only `Retry-After` is."""
        fields = {}
        if not result.fallback:
            fields = {"RateLimit-Policy": self.policy, "RateLimit": self.standing(result, cost=cost)}
        if not result.allowed:
            fields["Retry-After"] = self.retry_after(result)
        return fields

    def standing(self, result: RateLimitResult, *, cost: int = 1) -> str:
        """`RateLimit`: what is left of each limit; in a refusal, only of the exceeded limits."""
        return ", ".join(
            f'"{self._names[at]}";r={result.limits[at].remaining};t={_whole(result.limits[at].next_after_seconds)}'
            for at in self._exceeded(result, cost)
        )

    def retry_after(self, result: RateLimitResult) -> str:
        """`Retry-After`, in whole seconds."""
        return str(_whole(result.retry_after_seconds))

    def problem(self, result: RateLimitResult, *, cost: int = 1) -> dict[str, Any]:
        """The body of a refusal, to be sent as `application/problem+json`."""
        return {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "violated-policies": [self._names[at] for at in self._exceeded(result, cost)],
        }

    def _exceeded(self, result: RateLimitResult, cost: int) -> list[int]:
        cost = check_whole("cost", cost, 1, MAX_UNITS)
        # A fallback has other limits.
        if result.fallback:
            return []
        return [at for at, each in enumerate(result.limits) if result.allowed or each.remaining < cost]


def _policy(rate: Rate) -> str:
    """The field has only whole seconds: 10 in 0.1 s become 100 in 1 s. A burst other than the limit is our own
    parameter."""
    window = _whole(rate.period_seconds)
    quota = math.floor(rate.limit * window / rate.period_seconds + 1e-9)
    burst = "" if rate.burst in (None, rate.limit) else f";holdfast-burst={rate.burst}"
    return f";q={quota};w={window}{burst}"


def _name(rate: Rate, count: int) -> str:
    return "default" if count == 1 else f"per-{rate.period_seconds:g}s"


def _whole(seconds: float) -> int:
    """Rounded up: a client that comes too early is refused again."""
    return max(1, math.ceil(seconds - 1e-9))


def _checked_names(names: Sequence[str], limits: Sequence[Rate]) -> tuple[str, ...]:
    is_valid = not isinstance(names, str) and len(names) == len(limits)
    if not is_valid or not all(isinstance(each, str) and _NAME.fullmatch(each) for each in names):
        rule = f"{len(limits)} names, of printable ASCII without quotes and backslashes"
        raise InvalidArgumentError("names", names, rule)
    return tuple(names)
