"""docs/reference/python.md has a row for every public name of TypeScript, and tells the truth of both languages."""

from __future__ import annotations

import importlib.util
import inspect
import re
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Set, Tuple

import holdfast
from holdfast import MissingClientError

ROOT = Path(__file__).resolve().parents[2]
SURFACE = (ROOT / "test/public-surface.txt").read_text()
PAGE = (ROOT / "docs/reference/python.md").read_text().split("\n## Every public name\n")[1].split("\n## ")[0]
MEMBERS = "TypeScript"
"""The heading of the table of methods and properties."""


@lru_cache
def rows() -> List[Tuple[str, List[str], List[str], str]]:
    """Of each row the heading of its table, the names of TypeScript, those of Python, and the reason."""
    heading, found = "", []
    for line in PAGE.splitlines():
        if not line.startswith("|") or line.startswith("| ---"):
            continue
        first, python, why = (cell.strip() for cell in line.strip("|").split("|"))
        if python == "Python":
            heading = first
        else:
            found.append((heading, re.findall(r"`([^`]+)`", first), re.findall(r"`([^`]+)`", python), why))
    return found


@lru_cache
def exports() -> Dict[str, Set[str]]:
    """Entry of the npm package → what it exports."""
    found: Dict[str, Set[str]] = {}
    for entry, names in re.findall(r"^entry (\S+)\n((?:  .+\n)+)", SURFACE, re.M):
        found[entry] = set(re.findall(r"^  (\w+) = ", names, re.M))
    return found


def is_in(entry: str, heading: str) -> bool:
    return f"`{entry}`" in heading or (entry.startswith("holdfast/drivers/") and "`holdfast/drivers/…`" in heading)


def members() -> Dict[str, Set[str]]:
    """The methods and properties of the classes that both languages have under one name."""
    found: Dict[str, Set[str]] = {}
    declarations = r"^export (?:declare (?:abstract )?class|interface) (\w+)[^{]*\{\n(.*?)^\}"
    for name, body in re.findall(declarations, SURFACE, re.M | re.S):
        if name in exports()["holdfast"] and isinstance(getattr(holdfast, name, None), type):
            names = re.findall(r"^    (?:static |readonly |get |set )*(\w+)\??[(<:]", body, re.M)
            found.setdefault(name, set()).update(set(names) - {"constructor"})
    # These are types of options, and `Driver` is for authors of drivers.
    return {name: of for name, of in found.items() if not name.endswith(("Options", "Driver", "Error"))}


def test_every_export_of_typescript_has_a_row_in_the_table_of_its_entry() -> None:
    lacking = [
        f"{entry}: {name}"
        for entry, names in exports().items()
        for name in sorted(names)
        if not any(is_in(entry, heading) and name in listed for heading, listed, _, _ in rows())
    ]
    assert lacking == [], "add a row to docs/reference/python.md: the Python name, or why there is none"


def test_no_row_is_about_a_name_that_typescript_does_not_have() -> None:
    for heading, names, _, _ in rows():
        if heading != MEMBERS:
            known = set().union(*(names for entry, names in exports().items() if is_in(entry, heading)))
            assert set(names) <= known, heading


def test_every_python_name_of_the_table_exists_and_a_row_without_one_says_why() -> None:
    for _, names, python, why in rows():
        assert python or why, names
        for name in python:
            assert exists(name), name


def test_every_member_has_the_same_name_in_pythons_spelling_or_a_row() -> None:
    listed = {name for heading, names, _, _ in rows() if heading == MEMBERS for name in names}
    lacking = []
    for kind, names in members().items():
        known = fields(getattr(holdfast, kind))
        for name in names:
            has = snake(name) in known
            if has == (f"{kind}.{name}" in listed):
                lacking.append(f"{kind}.{name}")
    assert lacking == [], "neither in Python nor in the table of docs/reference/python.md, or in both"
    assert {"DistributedLock", "Lease", "RateLimiter", "LeaseInfo"} <= set(members())


def fields(kind: type) -> Set[str]:
    """Also those of dataclasses, and what constructors set."""
    return {*dir(kind), *getattr(kind, "__annotations__", {}), *re.findall(r"self\.(\w+) = ", inspect.getsource(kind))}


def exists(name: str) -> bool:
    """`DistributedLock.lock` of the package, or `drivers.redis.redis_driver` of a module of it."""
    package, *parts = ("holdfast", *name.split("."))
    value: Any = holdfast
    for at, part in enumerate(parts):
        module = ".".join([package, *parts[: at + 1]])
        if not hasattr(value, part) and isinstance(value, ModuleType) and importlib.util.find_spec(module):
            try:
                value = importlib.import_module(module)
            except MissingClientError:
                source = (ROOT / "python/src" / f"{module.replace('.', '/')}.py").read_text()
                return re.search(rf"^(?:def|class|from \S+ import) {parts[-1]}\b", source, re.M) is not None
        else:
            value = getattr(value, part, None)
    return value is not None


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name).lower()
