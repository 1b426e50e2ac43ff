"""`python -m holdfast` says where the command line is."""

from __future__ import annotations

import sys

from . import __version__

TEXT = f"""\
holdfast {__version__} for Python is a library: from holdfast import DistributedLock.

The command line is part of the npm package and works on the same locks:

    npx holdfast run nightly-backup -- ./backup.sh    a command under a lock
    npx holdfast ls                                   the locks that are held
    npx holdfast doctor                               checks the store

It reads the store from HOLDFAST_URL, like this package, or from --url.
"""


def main() -> int:
    print(TEXT, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
