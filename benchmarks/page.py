"""docs/benchmarks.md, which two programs write: each leaves the other's part as it is."""

from typing import Final

from benchmarks.fresh import ROOT

__all__ = ["write_limits", "write_overload"]

_BEGIN: Final = "<!-- overload -->"
_END: Final = "<!-- /overload -->"
_PAGE: Final = ROOT / "docs" / "benchmarks.md"


def write_limits(text: str) -> str:
    """Write all but the section about overload. Returns where, for people."""
    _PAGE.write_text(_with_section(text, _section(_read())), encoding="utf-8")
    return str(_PAGE.relative_to(ROOT))


def write_overload(section: str) -> str:
    """Write the section about overload only."""
    _PAGE.write_text(_with_section(_read(), section), encoding="utf-8")
    return str(_PAGE.relative_to(ROOT))


def _read() -> str:
    return _PAGE.read_text(encoding="utf-8") if _PAGE.exists() else "# Benchmarks\n"


def _section(page: str) -> str:
    _, begin, rest = page.partition(_BEGIN)
    section, end, _ = rest.partition(_END)
    return section.strip() if begin and end else ""


def _with_section(page: str, section: str) -> str:
    """The page with this section where its old one was, else at its end."""
    before, _, rest = page.partition(_BEGIN)
    marked = f"{_BEGIN}\n\n{section.strip()}\n\n{_END}" if section else ""
    parts = (before.strip(), marked, rest.partition(_END)[2].strip())
    return "\n\n".join(part for part in parts if part) + "\n"
