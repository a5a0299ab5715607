"""Programs that only the system can provide: Prometheus and a browser."""

import os
import shutil

import pytest

__all__ = ["chromium", "prometheus", "promtool"]


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        how = f"{name} is not here: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(how)
        pytest.skip(how)
    return found


def promtool() -> str:
    """Prometheus' tool that checks metrics and rules; skips where there is none, but not in CI."""
    return _program("promtool", "prometheus")


def prometheus() -> str:
    """Prometheus itself, likewise."""
    return _program("prometheus", "prometheus")


def chromium() -> str:
    """A browser, likewise."""
    return _program("chromium", "chromium")
