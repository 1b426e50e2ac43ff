"""What the parts of the package may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "src/holdfast"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "protocol" not in path.parts)
TELEMETRY = ("prometheus_client", "opentelemetry")
CLIENTS = ("redis", "asyncpg", "psycopg", "psycopg_pool", "sqlalchemy")
# Beside its own parts and drivers/_shared.
DRIVERS_THAT_SHARE = {"redlock": {"redis"}, "postgres_advisory": {"postgres"}, "plain_functions": {"postgres"}}


class Import(NamedTuple):
    module: str
    """Inside the package, without `holdfast.`; otherwise the name of the module."""
    is_own: bool
    is_lazy: bool
    """Inside a function, or only for types: it costs nothing when the module is imported."""


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=relative(path))


def imports_of(path: Path) -> Iterator[Import]:
    here = ("holdfast", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node, is_lazy in walk(tree_of(path), False):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*here[: len(here) - node.level], *filter(None, [node.module])) if node.level else [])
            base = base or (node.module or "")
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            is_own = name.split(".")[0] == "holdfast"
            yield Import(name.partition(".")[2] if is_own else name, is_own, is_lazy)


def walk(node: ast.AST, is_lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        is_later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or is_for_types
        yield child, is_lazy
        yield from walk(child, is_lazy or is_later)


def driver_of(module: str) -> str:
    """The name of the driver that a module below `drivers` is part of, or `_shared`."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else ""
    return name if name == "_shared" else name.lstrip("_")


def is_allowed(path: Path, found: Import) -> bool:
    part, target = relative(path).split("/"), found.module
    if not found.is_own:
        # The clients are optional: only drivers use them, and only when one of theirs is opened.
        return found.module.split(".")[0] not in CLIENTS or found.is_lazy
    if target.startswith(("errors.", "_protocol.")) or target in ("errors", "_protocol"):
        return True
    if part[0] == "core":
        return target.startswith("core")
    if part[0] == "drivers":
        if target.startswith("core"):
            return True
        own = driver_of(".".join(part).replace(".py", ""))
        shared = {own, "_shared"} | DRIVERS_THAT_SHARE.get(own, set())
        return target.startswith("drivers") and driver_of(target) in shared
    # connect.py and fences open the one driver that is needed, when it is needed. What holdfast exports of a driver
    # imports no client: see below.
    return not target.startswith("drivers") or found.is_lazy or part == ["__init__.py"]


def test_modules_import_only_what_their_layer_may():
    strays = [
        f"{relative(path)}: {found.module}"
        for path in MODULES
        for found in imports_of(path)
        if not is_allowed(path, found)
    ]
    assert len(MODULES) > 100 and strays == []


def test_the_rules_find_an_import_that_is_not_allowed():
    def is_fine(path: str, module: str, is_lazy: bool = False) -> bool:
        return is_allowed(PACKAGE / path, Import(module, module.startswith(("core", "drivers")), is_lazy))

    assert not is_fine("core/lease.py", "drivers.redis.redis_driver")
    assert not is_fine("drivers/redis.py", "drivers._postgres.arrays.text_array")
    assert not is_fine("drivers/_shared/gcra.py", "drivers._redis.keys.slot_of", is_lazy=True)
    assert not is_fine("lock.py", "drivers.redis.redis_driver")
    assert not is_fine("lock.py", "redis.asyncio")
    assert is_fine("connect.py", "drivers.redis.redis_driver", is_lazy=True)
    assert is_fine("drivers/redlock.py", "drivers._redis.keys.slot_of")


def test_no_module_evaluates_its_annotations():
    evaluating = []
    for path in MODULES:
        body = tree_of(path).body
        defines = any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) for node in body)
        if defines and not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in body):
            evaluating.append(relative(path))
    assert evaluating == []


def test_every_folder_is_a_package_because_the_wheel_contains_only_packages():
    assert [relative(path.parent) for path in MODULES if not (path.parent / "__init__.py").exists()] == []


def test_importing_the_package_imports_no_client_of_a_store():
    heavy = (*CLIENTS, *TELEMETRY, "sqlite3")
    code = f"import sys, holdfast; print(*(name for name in {heavy} if name in sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout.split() == []


def test_the_public_names_are_listed_explicitly():
    imports = [node for node in tree_of(PACKAGE / "__init__.py").body if isinstance(node, ast.ImportFrom)]
    names = [alias for node in imports for alias in node.names]
    assert names and all(alias.name != "*" for alias in names)
