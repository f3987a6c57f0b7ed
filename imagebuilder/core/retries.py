"""How often, and for how long, to retry one piece of work.

Nested retry loops multiply: eight times eight tries take an hour. So a piece of work has one budget, and all
its requests spend from that budget.
"""

from __future__ import annotations

import random
import time

# The longest pause between two tries in seconds, also if a server asks for more.
_LONGEST_PAUSE = 60.0


class Budget:
    """The tries of one piece of work; not thread-safe.

    Args:
        attempts: how many tries may fail in a row.
        seconds: no try starts later than this after the first failure in a row.
        pause: seconds before the second try; each further pause is twice as long.

    """

    def __init__(self, *, attempts: int, seconds: float, pause: float) -> None:
        self.failures = 0
        self._attempts = attempts
        self._seconds = seconds
        self._pause = pause
        self._began = time.monotonic()
        self._failing_since = 0.0

    def spend(self, asked: float = 0.0) -> float | None:
        """Count a failed try. Returns the seconds to wait before the next one; None if no try is left.

        Args:
            asked: the seconds that the server asks us to wait.

        """
        now = time.monotonic()
        if not self.failures:
            self._failing_since = now
        self.failures += 1
        seconds = min(max(asked, self._pause * 2.0 ** (self.failures - 1)), _LONGEST_PAUSE)
        seconds *= 1 + random.random() / 4  # noqa: S311  spreads the retries of parallel transfers; no secret
        if self.failures >= self._attempts or now + seconds > self._failing_since + self._seconds:
            return None
        return seconds

    def progressed(self) -> None:
        """Restore the full budget, because the work got further than before."""
        self.failures = 0
        self._began = time.monotonic()

    def __str__(self) -> str:
        """Return what was spent: `8 attempts in 63 s`."""
        tries = f"{self.failures} attempt{'' if self.failures == 1 else 's'}"
        return f"{tries} in {time.monotonic() - self._began:.0f} s"
