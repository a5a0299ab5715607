"""Every code block of the README and the docs runs, and every command in them exists."""

import ast
import asyncio
import importlib
import inspect
import re
from pathlib import Path

import pytest

from aiolimit.watch.roster import INSTRUMENTS
from tests.serving import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = sorted((ROOT / "aiolimit").rglob("*.py"))
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """The blocks of one language: the line each begins in, and its text."""
    text = path.read_text()
    found = []
    for match in BLOCK.finditer(text):
        assert match[2] in ("python", "console", "text"), f"{path}: a block of {match[2]!r}"
        if match[2] == language:
            line = text[: match.start(3)].count("\n")
            indent = len(match[1])
            found.append((line, "".join(each[indent:] for each in match[3].splitlines(True))))
    return found


def execute(path: Path, namespace: dict[str, object]) -> int:
    """Run the blocks of a page one after the other, as a reader would type them."""
    count = 0
    for line, source in blocks(path, "python"):
        tree = compile("\n" * line + source, str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if tree.co_flags & inspect.CO_COROUTINE:

            async def typed(code: object = tree) -> None:
                await eval(code, namespace)  # type: ignore[arg-type]  # noqa: S307

            asyncio.run(asyncio.wait_for(typed(), 30))
        else:
            exec(tree, namespace)  # noqa: S102
        count += 1
    return count


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_blocks_of_a_page_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    count = execute(path, namespace)
    if path.name in ("README.md", "how-it-works.md", "testing.md"):
        assert count >= 4
    printed = capsys.readouterr().out
    # What a block says it prints, in a comment after a print, is what it prints.
    for _, source in blocks(path, "python"):
        for promised in re.findall(r"^print\(limiter.*\n# (.*)$", source, re.MULTILINE):
            assert promised in printed


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_of_a_docstring_run(path: Path) -> None:
    from aiolimit import Limiter, testing

    async def app(scope: object, receive: object, send: object) -> None: ...

    names = {"Limiter": Limiter, "FakeClock": testing.FakeClock, "app": app}
    if any(blocks(path, "python")):  # where it tells of what the room itself holds
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names |= vars(importlib.import_module(name))
    execute(path, names)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_commands_of_a_page_exist(path: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for _, source in blocks(path, "console"):
        for command in source.splitlines():
            word, *rest = command.split()
            if word == "make":
                assert rest[0] in targets, command
            for argument in rest:
                if re.fullmatch(r"(tests|examples|docs)/\S+", argument):
                    assert (ROOT / argument).exists(), command


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_links_of_a_page_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\((?!https:)([^)#]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link


def test_nobody_is_told_to_install_somebody_elses_package() -> None:
    for path in [*PAGES, *ROOMS, ROOT / "CHANGELOG.md"]:
        assert not re.search(r"pip install aiolimit(?!-core)", path.read_text()), path


def test_every_metric_is_on_its_page_and_every_alert_on_its() -> None:
    suffix = {"counter": "_total", "gauge": "", "histogram": ""}
    names = {f"{one.name}{suffix[one.kind]}" for one in INSTRUMENTS}
    told = (ROOT / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"`(aiolimit_\w+)`", told)) == names
    for one in INSTRUMENTS:
        if one.labels:
            row = next(
                line for line in told.splitlines() if f"| `{one.name}{suffix[one.kind]}`" in line
            )
            assert all(f"`{label}`" in row for label in one.labels), row
    alerts = re.findall(r"alert: (\w+)", (ROOT / "grafana/rules/aiolimit.rules.yml").read_text())
    told = (ROOT / "docs" / "operating.md").read_text()
    assert sorted(set(re.findall(r"\| `(Aiolimit\w+)` \|", told))) == sorted(alerts)
