"""What is true by definition, slowly: every admission is kept, and all sums are exact."""

from fractions import Fraction


class ExactLog:
    """A sliding window as its definition has it: no entry is ever joined or forgotten."""

    def __init__(self, period: float) -> None:
        self.period = Fraction(period)
        self.admissions: list[tuple[Fraction, Fraction]] = []

    def used(self, now: float, age: float = 0.0) -> Fraction:
        """The cost in the half-open interval of one period (and `age` more) that ends now."""
        start = Fraction(now) - self.period - Fraction(age)
        return Fraction(sum(cost for at, cost in self.admissions if start < at))

    def admit(self, now: float, cost: float) -> None:
        self.admissions.append((Fraction(now), Fraction(cost)))

    def worst(self) -> Fraction:
        """The most that any half-open interval of one period holds."""
        times = [at for at, _ in self.admissions]
        return max((self.used_at(end) for end in times), default=Fraction(0))

    def used_at(self, end: Fraction) -> Fraction:
        inside = (cost for at, cost in self.admissions if end - self.period < at <= end)
        return Fraction(sum(inside))


class ExactPace:
    """A pace as its definition has it: what is ahead drains evenly and is never below zero."""

    def __init__(self) -> None:
        self.ahead = Fraction(0)
        self.at = Fraction(0)

    def ahead_at(self, now: float, rate: float) -> Fraction:
        drained = max(Fraction(0), Fraction(now) - self.at) * Fraction(rate)
        return max(Fraction(0), self.ahead - drained)

    def admit(self, now: float, cost: float, rate: float) -> None:
        self.ahead = self.ahead_at(now, rate) + Fraction(cost)
        self.at = max(self.at, Fraction(now))


class FixedWindow:
    """The usual counter: it starts anew at every multiple of the period."""

    def __init__(self, limit: int, period: float) -> None:
        self.limit, self.period = limit, period
        self.counts: dict[int, int] = {}

    def take(self, now: float) -> bool:
        window = int(now / self.period)
        self.counts[window] = self.counts.get(window, 0) + 1
        return self.counts[window] <= self.limit


class WholeSubWindows:
    """The usual sliding counter: it drops whole sub-windows, the oldest a little too early."""

    def __init__(self, limit: int, period: float, sub_windows: int) -> None:
        self.limit, self.length, self.sub_windows = limit, period / sub_windows, sub_windows
        self.counts: dict[int, int] = {}

    def take(self, now: float) -> bool:
        newest = int(now / self.length + 1e-9)
        used = sum(self.counts.get(newest - back, 0) for back in range(self.sub_windows))
        if used >= self.limit:
            return False
        self.counts[newest] = self.counts.get(newest, 0) + 1
        return True
