"""What the second act shows: a live table in a terminal, plain lines elsewhere, and the summary."""

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from aiolimit.cli.screen import sparkline
from aiolimit.cli.tally import DEADLINE, Second, merged, whole_phases

__all__ = ["lines", "summary", "table", "wrong"]

_AROUND = 11  # lines of the screen that are not rows of the table
_MANY = 0.25  # of the calls of a service that is not overloaded: so many refusals are wrong
_FEW = 0.2  # of what an overloaded service could do: to do less is wrong
_ROOM = 0.7  # of what a service can do: with less to do it is not overloaded
_FAR = 2.0  # times what it can do: with more to do it has to refuse


def table(console: Console, by_second: Sequence[Second], elapsed: float) -> Group:
    """The table as it is now: the latest seconds, and what the limiter says."""
    now = min(int(elapsed), len(by_second) - 1)
    phase = by_second[now].phase
    grid = Table(
        title=f"busy, {min(elapsed, len(by_second)):.0f} of {len(by_second)} s: {phase.per_second} "
        f"requests a second, each burns {phase.milliseconds:g} ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    grid.add_column("s", justify="right", no_wrap=True)
    grid.add_column("phase", style="dim", no_wrap=True)
    for column, style in (
        ("offered", ""),
        ("in time", "green"),
        ("refused", "red"),
        ("late", "yellow"),
        ("p99 ms", ""),
        ("in flight", ""),
        ("cost ms", "cyan"),
        ("can do", "cyan"),
    ):
        grid.add_column(column, justify="right", style=style, no_wrap=True)
    first = max(0, now + 1 - max(4, console.height - _AROUND))
    for number in range(first, now + 1):
        second = by_second[number]
        grid.add_row(
            str(number + 1),
            second.phase.name,
            str(second.offered),
            str(second.in_time),
            str(second.refused),
            str(second.late),
            _milliseconds(second.percentile(99)),
            *_told(second),
        )
    width = max(4, console.width - 24)
    shown = by_second[max(0, now + 1 - width) : now + 1]
    bars = Text("in time, each second: ", style="dim")
    bars.append(sparkline(console, [second.in_time for second in shown]), style="green")
    return Group(grid, bars, Text(_explanation(by_second[: now + 1]), style="dim"))


def lines(by_second: Sequence[Second], number: int) -> list[str]:
    """A second as plain lines: with what is new before, and the limiter's word after a phase."""
    second, text = by_second[number], []
    phase = second.phase
    if number == 0 or by_second[number - 1].phase is not phase:
        text.append(
            f"{phase.name}: {phase.per_second} requests a second, each burns "
            f"{phase.milliseconds:g} ms of CPU"
        )
    in_flight, cost, can_do = _told(second)
    text.append(
        f"{number + 1:4} s  {second.offered} offered, {second.in_time} in time, "
        f"{second.refused} refused, {second.late} late, p99 {_milliseconds(second.percentile(99))} "
        f"ms; {in_flight} in flight, {cost} ms CPU a request, can do {can_do}"
    )
    if by_second[number + 1 : number + 2] == [] or by_second[number + 1].phase is not phase:
        text.append(f"        {_explanation(by_second[: number + 1])}")
    return text


def summary(by_second: Sequence[Second]) -> list[str]:
    """What its clients saw, in sentences."""
    parts = whole_phases(by_second)
    total, in_time, late, refused = (
        sum(getattr(part, name) for part in parts)
        for name in ("offered", "in_time", "late", "refused")
    )
    text = (
        f"{total} requests came in {len(by_second)} s: {in_time} were answered in time (within "
        f"{DEADLINE:g} s), {late} late, {refused} refused with 503."
    )
    costs = [part.statuses[-1].cost for part in parts if part.statuses]
    told = [_milliseconds(cost, 1) for cost in costs if cost is not None]
    last = (
        "  Nobody told the limiter what a request costs. It measures, and follows over seconds of "
        f"work: it was at {', '.join(told[:-1])} and {told[-1]} ms at the end of the phases."
    )
    return [text, *map(_sentence, parts), _recovery(parts), *([last] if len(told) > 1 else [])]


def wrong(by_second: Sequence[Second]) -> list[str]:
    """What should not have happened, on however busy a machine; as a rule nothing."""
    text = []
    for part in whole_phases(by_second):
        phase = part.phase
        for kind, count in part.failures.items():
            text.append(f"  WRONG: {count} requests of '{phase.name}' ended with {kind}.")
        could = part.could
        if could is None:
            continue
        if phase.per_second > _FAR * could and not part.refused:
            text.append(f"  WRONG: of '{phase.name}' nothing was refused.")
        if phase.per_second > could and part.in_time < _FEW * could * phase.seconds:
            text.append(f"  WRONG: of '{phase.name}' only {part.in_time} were answered in time.")
        # The first second is for those who came before.
        rest = [second for second in by_second if second.phase is phase][1:]
        if rest and phase.per_second < _ROOM * could:
            refused, offered = merged(rest).refused, merged(rest).offered
            if refused > _MANY * offered:
                text.append(
                    f"  WRONG: of '{phase.name}' {refused} of {offered} were refused, though there "
                    "was CPU for them."
                )
    # The last status was asked for when all had their answers.
    if left := sum(status.in_flight for status in by_second[-1].statuses[-1:]):
        text.append(f"  WRONG: all were answered, and still {left} are said to be in flight.")
    return text


def _sentence(part: Second) -> str:
    phase, could = part.phase, part.could
    came, in_time = part.offered / phase.seconds, part.in_time / phase.seconds
    text = f"  {phase.name}: {came:.0f}/s came"
    if could is not None and part.share is not None:
        text += (
            f", {came / could:.1f} times what there was CPU for ({phase.milliseconds:g} ms each, "
            f"and it could get {_per_cent(part.share)} of a core: {could:.0f}/s at most)"
        )
    text += f"; {in_time:.0f}/s were answered in time"
    if part.latencies:
        text += f", p99 {_milliseconds(part.percentile(99))} ms"
    if could is not None and came > could:
        # Not of the others: what began before them, at another cost, would weigh too much.
        text += f", which took {_per_cent(part.useful / part.cpu)} of the CPU that it used"
    if part.late:
        text += f"; {part.late} late"
    if part.refused:
        slowest = _milliseconds(part.slowest_refusal)
        text += f"; {part.refused} were refused, the slowest refusal took {slowest} ms"
    return f"{text}."


def _recovery(parts: Sequence[Second]) -> str:
    """When all was well again after the last change, for good."""
    trouble, begin = parts[-1].trouble, sum(part.phase.seconds for part in parts[:-1])
    if trouble is None:
        return "  As soon as the overload was over, all were answered in time."
    after = f"{trouble - begin:.1f} s after the overload"
    return f"  The last request that was not answered in time was sent {after}."


def _told(second: Second) -> tuple[str, str, str]:
    """Of what the service told in a second: in flight and cap, cost, rate."""
    if not second.statuses:
        return "-", "-", "-"
    last, fullest = second.statuses[-1], second.fullest or second.statuses[-1]
    return (
        f"{fullest.in_flight} of {fullest.cap:.0f}",
        _milliseconds(last.cost, 1),
        "-" if last.rate is None else f"{last.rate:.0f}/s",
    )


def _explanation(by_second: Sequence[Second]) -> str:
    """What the limiter said last."""
    said = (status.explain for second in reversed(by_second) for status in second.statuses[::-1])
    return next(said, "")


def _milliseconds(seconds: float | None, digits: int = 0) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.{digits}f}"


def _per_cent(share: float) -> str:
    return f"{share * 100:.0f} %"
