"""Times as our documents write them: RFC 3339, in UTC, in whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

EPOCH = "1970-01-01T00:00:00Z"
_LONGEST = 64
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_END = 253_402_300_800.0  # the year 10000, which RFC 3339 cannot write


def of_seconds(seconds: float) -> str:
    """Write a time that is given in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_FORMAT)


def seconds(text: object) -> float:
    """Read a time as in RFC 3339, in seconds since 1970; 0 if it is not one.

    >>> seconds("2026-11-21T00:53:03Z"), seconds("yesterday"), seconds(None)
    (1795222383.0, 0.0, 0.0)
    """
    try:
        read = datetime.fromisoformat(str(text)[:_LONGEST])
        return read.timestamp() if read.tzinfo else 0.0
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


def mail_seconds(text: str) -> float:
    """Read a time as in RFC 5322, which HTTP and Debian's archives use; 0 if it is not one.

    >>> mail_seconds("Sat, 21 Nov 2026 00:53:03 UTC"), mail_seconds("today")
    (1795222383.0, 0.0)
    """
    try:
        read = parsedate_to_datetime(text[:_LONGEST])
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


def normal(seconds: float) -> str:
    """Write a time that somebody else's document states; "" for one that stands for none, such as the epoch.

    >>> normal(1795222383.9), normal(0.0), normal(-6.2e10), normal(1e18)
    ('2026-11-21T00:53:03Z', '', '', '')
    """
    return of_seconds(int(seconds)) if 0 < seconds < _END else ""
