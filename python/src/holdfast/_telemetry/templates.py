"""Which label the name of a lock gets: the same patterns, and the same bounds, as in TypeScript."""

from __future__ import annotations

import re
from typing import Any, Callable, Sequence, Union

from ..core.arguments import check_text, is_storable, text_of
from ..core.emitter import warn_of_fault
from ..core.limits import MAX_NAME_LENGTH, MAX_TEMPLATES
from ..errors import InvalidArgumentError

Templates = Union[Sequence[str], Callable[[str], Any]]
"""Patterns such as `order:{id}`, where `{id}` is one or more characters except `:`, or a function that returns the
template of a name. The function may return None, for "other"."""

OTHER = "other"
"""The label of every name that has no template."""

_PLACEHOLDER = re.compile(r"\{[\w-]*\}", re.ASCII)


def template_finder(templates: object) -> Callable[[str], str]:
    """Returns a function from the name of a lock, or the key of a rate limiter, to its template. It never raises, and
    has at most `MAX_TEMPLATES` results and "other": names often contain what users type, and a series for each of them
    would fill the memory of this process and of the metrics server.

    Raises `InvalidArgumentError`.
    """
    if templates is None:
        return lambda _: OTHER
    if callable(templates):
        return _bounded(templates)
    if not isinstance(templates, (list, tuple)) or len(templates) > MAX_TEMPLATES:
        rule = f"a function or a list of at most {MAX_TEMPLATES} patterns"
        raise InvalidArgumentError("templates", templates, rule)
    patterns = [_Pattern(template, f"templates[{at}]") for at, template in enumerate(templates)]

    def find(name: str) -> str:
        for pattern in patterns:
            if pattern.matches(name):
                return pattern.template
        return OTHER

    return find


def _bounded(template_of: Callable[[str], Any]) -> Callable[[str], str]:
    """For a user's function, which may return anything, and as many different texts as there are names."""
    known: set[str] = set()
    warned = False

    def find(name: str) -> str:
        nonlocal warned
        try:
            template = text_of(template_of(name))
        except Exception as error:
            # Once: a warning for each event would be a flood.
            if not warned:
                warned = True
                warn_of_fault("the function of `templates`", error)
            return OTHER
        if template is None or template in known:
            return OTHER if template is None else template
        if len(known) >= MAX_TEMPLATES or not 0 < len(template) <= MAX_NAME_LENGTH or not is_storable(template):
            return OTHER
        known.add(template)
        return template

    return find


class _Pattern:
    def __init__(self, template: object, argument: str) -> None:
        self.template = check_text(argument, template, MAX_NAME_LENGTH)
        if "}{" in _PLACEHOLDER.sub("{}", self.template):
            raise InvalidArgumentError(argument, template, "a pattern with a text between two placeholders")
        self._prefix = _PLACEHOLDER.split(self.template)[0]
        """The text before the first placeholder. Most names that do not match do not begin with it."""
        self._parts = [_PLACEHOLDER.split(part) for part in self.template.split(":")]
        """For each part between colons, the texts around its placeholders. One text: no placeholder."""

    def matches(self, name: str) -> bool:
        if not name.startswith(self._prefix):
            return False
        parts = name.split(":")
        return len(parts) == len(self._parts) and all(map(_matches_part, self._parts, parts))


def _matches_part(texts: Sequence[str], part: str) -> bool:
    """Takes each text at its first place, which is enough where only texts are between the placeholders. Not a regular
    expression: with several placeholders, a hostile name would make it try every way to divide the name."""
    first, last = texts[0], texts[-1]
    if len(texts) == 1:
        return part == first
    if not part.startswith(first) or not part.endswith(last):
        return False
    at = len(first)
    for text in texts[1:-1]:
        found = part.find(text, at + 1)
        if found == -1:
            return False
        at = found + len(text)
    return len(part) - len(last) > at
