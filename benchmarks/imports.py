"""How much longer `import aiolimit` takes than `import asyncio`, which every user has anyway.

An import happens once in a process, so each is timed in a fresh one, and only the import: the
start of Python is the same for both. The first run of each compiles, and is not counted; the
compiled files go to a folder for this run, so that it does not matter how Python is set up here.
"""

import os
import tempfile
from statistics import median
from typing import Final

from benchmarks.fresh import alternate
from benchmarks.report import Row

__all__ = ["measure"]

_TARGET: Final = 40  # ms
_REPEATS: Final = 21
_CODE: Final = (
    "import time; start = time.perf_counter(); import {module}; "
    "end = time.perf_counter(); print(f'{{{{\"ms\": {{(end - start) * 1e3}}}}}}')"
)


def measure() -> list[Row]:
    """The row about the import."""
    commands = {module: ["-c", _CODE.format(module=module)] for module in ("asyncio", "aiolimit")}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        alternate(commands, 1, environment)
        found = alternate(commands, _REPEATS, environment)
    ours, asyncio = median(found["aiolimit"]["ms"]), median(found["asyncio"]["ms"])
    told = f"+{ours - asyncio:.0f} ms ({ours:.0f} ms, {asyncio:.0f} ms)"
    return [
        Row("`import aiolimit`", "`import asyncio`", told, "<= +40 ms", ours - asyncio <= _TARGET)
    ]
