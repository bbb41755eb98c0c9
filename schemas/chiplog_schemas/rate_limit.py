"""A bound on how often something happens, that allows a burst."""


class TokenBucket:
    """Allow a burst, and then a rate per second. `allowance` is how many were allowed at once at the last call.

    Takes no lock, so that a signal handler may call it in the middle of another call: two threads at once may miscount
    by one, not more.
    """

    def __init__(self, now: float, per_s: float, burst: float) -> None:
        self.allowance = float(burst)
        self.called_at = now
        self._per_s = per_s
        self._burst = burst

    def allow(self, now: float) -> bool:
        """Return True if one more is allowed, and count it. now: monotonic, s."""
        self.allowance = min(self._burst, self.allowance + max(0.0, now - self.called_at) * self._per_s)
        self.called_at = now
        if self.allowance < 1:
            return False
        self.allowance -= 1
        return True
