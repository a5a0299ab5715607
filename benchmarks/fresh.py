"""Runs of fresh processes, in turns, for what a process can do only once.

Memory, a garbage collection and an import depend on all that the process did before. A child
measures one thing, prints it as JSON, and ends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

__all__ = ["ROOT", "alternate"]

ROOT: Final = Path(__file__).resolve().parent.parent

Figures = dict[str, float]


def alternate(
    commands: Mapping[str, Sequence[str]],
    repeats: int,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Figures]:
    """Run each command `repeats` times, in turns. Returns the median of each of its figures.

    commands: arguments for Python, by name.
    environment: variables in place of those of this process.
    """
    runs: dict[str, list[Figures]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, arguments in commands.items():
            runs[name].append(_run(arguments, environment))
    return {
        name: {figure: median(run[figure] for run in done) for figure in done[0]}
        for name, done in runs.items()
    }


def _run(arguments: Sequence[str], environment: Mapping[str, str] | None) -> Figures:
    done = subprocess.run(  # noqa: S603
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ if environment is None else environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return {name: float(value) for name, value in json.loads(done.stdout).items()}
