"""The house keeps its shape: which room knows which, what an import costs, what a wheel holds."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.serving import ROOT

PACKAGE = ROOT / "aiolimit"

# From the ground up. A room may import those before it, never those after it.
FLOORS = [
    {"arguments", "eviction", "identity", "load.law", "load.cgroup"},
    {"rate", "load.sensors", "load.adjustments", "watcher", "counts", "store", "shared.breaker"},
    {"load.options"},
    {"window", "warmup", "quota", "clock"},
    {"pacer", "restriction", "errors"},
    {"memory", "load.gate", "tally"},
    {"report", "ramps"},
    {"restrictions", "load.sampling", "queue", "sweeper"},
    {"load.controller"},
    {"queues", "standings"},
    {"permit"},
    {"settling", "refusing"},
    {"admission", "limited"},
    {"shadow", "explaining", "lane"},
    {"limiter", "joint"},
    {"shared.names", "shared.script", "shared.credit"},
    {"shared.local", "shared.sender", "shared.mirror", "shared.address"},
    {"shared.sharing"},
    {"shared.calls", "shared.links"},
    {"shared.jobs"},
    {"shared.telling"},
    {"shared.quota"},
    {"shared.line"},
    {"shared.admission"},
    {"redis"},
    {"watch.instrument"},
    {"watch.of_limiter", "watch.of_load"},
    {"watch.roster"},
    {"watch.multiprocess"},
    {"metrics", "otel"},
    {"dashboard.state"},
    {"testing", "http.address", "http.paths", "http.structured", "http.times"},
    {"http.fields", "http.feedback"},
    {"http.asgi_types", "http.answers", "http.uvicorn"},
    {"dashboard.app"},
    {"http.lifespan", "http.rule"},
    {"http.asgi", "http.fastapi", "http.aiohttp_server"},
    {"http.ledger", "http.httpx_adapter"},
    {"http.client"},
    {"http.httpx", "http.httpx2", "http.aiohttp_client"},
]
PURE = {
    "arguments", "rate", "window", "pacer", "warmup", "memory", "ramps", "errors", "report",
    "eviction", "identity", "quota", "restriction", "restrictions", "standings", "tally",
    "load.law", "load.adjustments", "counts", "shared.breaker", "shared.names", "shared.local",
    "shared.address",
    "http.fields", "http.paths", "http.structured", "http.times", "http.feedback",
}  # fmt: skip


def room(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    """All modules that are imported at the top of a file, and not for the type checker alone."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_lower_floors_never_import_higher_ones() -> None:
    level = {name: number for number, names in enumerate(FLOORS) for name in names}
    for name, number in level.items():
        path = PACKAGE / (name.replace(".", "/") + ".py")
        for imported in imports(path):
            if imported.startswith("aiolimit."):
                parts = imported.split(".")[1:]
                target = next(
                    ".".join(parts[:length])
                    for length in (2, 1)
                    if ".".join(parts[:length]) in level
                )
                assert level[target] < number, f"{name} imports {target}"


def test_the_pure_rooms_read_no_clock_and_know_no_loop() -> None:
    for name in PURE:
        path = PACKAGE / (name.replace(".", "/") + ".py")
        roots = {imported.split(".")[0] for imported in imports(path)}
        assert not roots & {"asyncio", "time", "threading", "anyio"}, name


def test_every_room_has_its_floor() -> None:
    known = set().union(*FLOORS)
    rooms = {room(path) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    assert {name for name in rooms if not name.startswith("cli.")} == known


def test_no_room_is_two() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path


def test_import_needs_nothing_but_the_standard_library() -> None:
    source = (
        "import sys; before = set(sys.modules); import aiolimit, aiolimit.testing; "
        "import aiolimit.http.asgi; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["aiolimit"], done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("aiolimit_core-*.whl"))


def test_what_the_wheel_holds(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "aiolimit/py.typed" in names
    assert "aiolimit/shared/engine.lua" in names
    assert "aiolimit/cli/examples/gateway.py" in names
    for part in ("page.html", "page.css", "page.js", "uplot/uPlot.iife.min.js"):
        assert f"aiolimit/dashboard/{part}" in names
    assert not any(name.startswith(("tests/", "benchmarks/", "examples/")) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/aiolimit/dashboard/uplot/LICENSE") for name in names)


def test_the_demo_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "aiolimit", "demo", "--seconds", "2"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "requests were answered" in done.stdout
