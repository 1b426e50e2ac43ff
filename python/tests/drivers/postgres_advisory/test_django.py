"""Django's connection, whose transactions are those of `atomic()`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

from support.names import unique

_PROGRAM = """
import sys
from django.conf import settings

host, port, user, name, lock_name = sys.argv[1:]
postgres = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "USER": user, "NAME": name}
sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": postgres, "other": postgres, "sqlite": sqlite})

from django.db import connection, connections, transaction
from holdfast import InvalidArgumentError, sync_lock_in_transaction, sync_try_lock_in_transaction


def is_free():
    with transaction.atomic(using="other"):
        return sync_try_lock_in_transaction(connections["other"], lock_name)


def reason(each):
    try:
        sync_lock_in_transaction(each, lock_name)
    except InvalidArgumentError as error:
        return str(error)


with transaction.atomic():
    sync_lock_in_transaction(connection, lock_name)
    print("held", not is_free())
print("released", is_free())
try:
    with transaction.atomic():
        sync_lock_in_transaction(connection, lock_name)
        raise KeyError
except KeyError:
    print("rolled back", is_free())
print("no transaction", "No transaction is open" in reason(connection))
print("another database", "This one is on sqlite" in reason(connections["sqlite"]))
"""


def test_a_lock_on_djangos_connection_lasts_as_long_as_atomic(postgres_url: str) -> None:
    at: Any = urlsplit(postgres_url)
    place = [at.hostname, str(at.port), at.username, at.path.lstrip("/")]
    command = [sys.executable, "-c", _PROGRAM, *place, unique("django")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    names = ("held", "released", "rolled back", "no transaction", "another database")
    assert (done.stdout, done.stderr) == ("".join(f"{name} True\n" for name in names), "")
