"""What the first act shows: a live table in a terminal, plain lines elsewhere, and the summary."""

from collections.abc import Mapping

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from aiolimit.cli.screen import sparkline
from aiolimit.cli.traffic import Tenant

__all__ = ["Status", "line", "summary", "table", "wrong"]

#: For each user what the gateway tells its operator: limit, remaining, waiting.
Status = dict[str, dict[str, float | None]]


def _number(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g}"


def table(
    console: Console, tenants: list[Tenant], status: Status, pace: str, elapsed: float, of: float
) -> Group:
    """The table as it is now."""
    bars = max(4, min(20, console.width - 60))
    second = int(elapsed)
    grid = Table(title=f"gateway, {elapsed:.0f} of {of:.0f} s", title_justify="left", expand=False)
    wide = console.width >= 110
    grid.add_column("user", no_wrap=True, min_width=5)
    if wide:
        grid.add_column("habit", style="dim")
    for column, style in (
        ("limit/min", "cyan"),
        ("remaining", ""),
        ("admitted", "green"),
        ("refused", "red"),
        ("waiting", "yellow"),
    ):
        grid.add_column(column, justify="right", style=style, no_wrap=True)
    grid.add_column("each second", style="green", no_wrap=True)
    for tenant in tenants:
        seen = status.get(tenant.name, {})
        limit = seen.get("limit", tenant.per_minute)
        grid.add_row(
            tenant.name,
            *([tenant.habit] if wide else []),
            _number(limit or None),
            "" if not limit else _number(seen.get("remaining", limit)),
            str(tenant.admitted),
            str(tenant.refused),
            f"{seen.get('waiting', 0):g}",
            sparkline(
                console,
                [tenant.by_second[at] for at in range(max(0, second - bars + 1), second + 1)],
            ),
        )
    return Group(grid, Text(pace, style="dim"))


def line(
    tenants: list[Tenant], status: Status, most_waiting: Mapping[str, int], elapsed: float
) -> str:
    """The same as one plain line, with the most that waited since the last one."""
    parts = []
    for tenant in tenants:
        limit = status[tenant.name]["limit"]
        of = f" of {limit:g}/min" if limit else ""
        waiting = most_waiting.get(tenant.name)
        counts = f"{tenant.admitted} admitted{of}, {tenant.refused} refused"
        parts.append(f"{tenant.name} {counts}" + (f", {waiting} waiting" if waiting else ""))
    return f"{elapsed:4.0f} s  " + "; ".join(parts)


def summary(tenants: list[Tenant]) -> list[str]:
    """What happened, in sentences."""
    total = sum(tenant.answers.total() for tenant in tenants)
    admitted = sum(tenant.admitted for tenant in tenants)
    refused = sum(tenant.refused for tenant in tenants)
    text = [f"{total} requests were answered: {admitted} admitted, {refused} refused with 429."]
    for tenant in tenants:
        limit = tenant.per_minute
        asked = f"{tenant.name} ({tenant.habit}) got {tenant.admitted} of {tenant.answers.total()}"
        if tenant.raised_to is not None:
            asked += f"; the limit was raised from {limit} to {tenant.raised_to} a minute half-way"
        elif limit:
            asked += f" at {limit} a minute"
        if tenant.refused:
            asked += f"; the last refusal said to retry after {tenant.retry_after} s"
        if tenant.queued:
            asked += f"; {tenant.queued} waited their turn, the longest {tenant.longest_wait:.2f} s"
        text.append(f"  {asked}.")
    return text


def wrong(tenants: list[Tenant]) -> list[str]:
    """What should not have happened; as a rule nothing."""
    text = []
    for tenant in tenants:
        most = max(tenant.per_minute, tenant.raised_to or 0)
        if most and tenant.admitted > most * (1 + max(tenant.by_second) // 60):
            text.append(f"  WRONG: {tenant.name} got {tenant.admitted}, more than {most} a minute.")
        for kind, count in tenant.failures.items():
            text.append(f"  WRONG: {count} requests of {tenant.name} ended with {kind}.")
        for code, count in tenant.answers.items():
            if code not in (200, 429):
                text.append(f"  WRONG: {count} requests of {tenant.name} were answered {code}.")
    return text
