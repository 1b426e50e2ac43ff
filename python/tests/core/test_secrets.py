"""What is left of the URLs in a message."""

from __future__ import annotations

import pytest

from holdfast.core.secrets import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"postgres://h/db?password=S3CR3T"', '"postgres://h/db?password=…"'),
        ('postgres://h/db?a=1&sslpassword=S3"C&b=2 is wrong', "postgres://h/db?a=1&sslpassword=…&b=2 is wrong"),
        ("\"postgres://:x@h:1/db?schema=S3'CR3T&db=\"\nTry", '"postgres://…@h:1/db?…"\nTry'),
        ("redis://me:x@h#S3CR3T", "redis://…@h?…"),
        ("see https://example.com/a?page=2#top", "see https://example.com/a?page=2#top"),
        ("redis://user:password@host and redis://u:p@h", "redis://user:password@host and redis://…@h"),
    ],
)
def test_logins_and_parameters_that_may_be_passwords_are_removed(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
