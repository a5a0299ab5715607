"""Write the dashboards that are described here to `grafana/dashboards/`.

python -m grafana.generate
"""

import json
from pathlib import Path
from typing import Final

from grafana.limiter import limiter
from grafana.overview import overview

__all__ = ["FOLDER", "main", "texts"]

FOLDER: Final = Path(__file__).parent / "dashboards"


def texts() -> dict[str, str]:
    """The files by their names, and what is in them."""
    described = {"overview.json": overview(), "limiter.json": limiter()}
    return {name: json.dumps(one, indent=2) + "\n" for name, one in described.items()}


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
