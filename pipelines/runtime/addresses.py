"""Addresses of servers as they may be shown."""

from __future__ import annotations


def without_password(address: str) -> str:
    """`scheme://user:password@host/path` without the password; anything else as it is."""
    scheme, mark, rest = address.partition("://")
    account, at, place = rest.rpartition("@")
    return f"{scheme}{mark}{account.partition(':')[0]}{at}{place}" if mark else address
