"""How the demo prints: what both acts share."""

from collections.abc import Sequence

from rich.console import Console

__all__ = ["say", "sparkline", "tell"]

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#@"


def sparkline(console: Console, counts: Sequence[int]) -> str:
    """The counts as bars, each against the highest."""
    bars = _ASCII_BARS if console.options.ascii_only else _BARS
    highest = max(counts, default=0) or 1
    return "".join(bars[-(-count * (len(bars) - 1) // highest)] for count in counts)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is, and whole, so that it can be copied."""
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)


def tell(console: Console, summary: list[str], wrong: list[str]) -> int:
    """Print a summary; the exit status is 0 if nothing is wrong."""
    console.print()
    for text in [*summary, *wrong]:
        # In a terminal lines are broken between words; elsewhere they stay whole.
        console.print(text, soft_wrap=not console.is_terminal, markup=False, highlight=False)
    return 1 if wrong else 0
