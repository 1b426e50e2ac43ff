"""Everything else is in pyproject.toml. This only refuses to build a package that could not lock."""

import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
NEEDED = ["README.md", *(f"{folder}/README.md" for folder in ("postgres", "redis", "sqlite"))]

missing = [each for each in NEEDED if not (HERE / "src/holdfast/protocol" / each).is_file()]
if missing:
    sys.exit(
        f"holdfast cannot be built: src/holdfast/protocol lacks {', '.join(missing)}. It is a link to the folder "
        "protocol/ of the repository: build in a whole checkout, with links (git config core.symlinks true)"
    )
setup()
