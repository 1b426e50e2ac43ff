"""`manage.py send_invoices`: runs on one machine at a time, and is skipped on the others."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from holdfast import NotAcquiredError, SyncDistributedLock


class Command(BaseCommand):
    help = "Sends the invoices of today."

    def handle(self, *args: Any, **options: Any) -> None:
        with SyncDistributedLock() as lock:
            try:
                # Cron may start the second machine a little later: keep the lock for at least a second.
                with lock.lock("send-invoices", min_hold_seconds=1) as lease:
                    self.stdout.write(f"sending invoices, held: {lease.held}")
            except NotAcquiredError as error:
                self.stdout.write(f"skipped: {error}")
