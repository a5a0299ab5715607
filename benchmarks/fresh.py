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
from typing import Final

__all__ = ["ROOT", "alternate"]

ROOT: Final = Path(__file__).resolve().parent.parent


def alternate(
    commands: Mapping[str, Sequence[str]],
    repeats: int,
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict[str, list[float]]]:
    """Run each command `repeats` times, in turns. Returns its figures, by name, of all runs.

    commands: arguments for Python, by name.
    environment: variables in place of those of this process.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    for _ in range(repeats):
        for name, arguments in commands.items():
            for figure, value in _run(arguments, environment).items():
                found[name].setdefault(figure, []).append(value)
    return found


def _run(arguments: Sequence[str], environment: Mapping[str, str] | None) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ if environment is None else environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return {name: float(value) for name, value in json.loads(done.stdout).items()}
