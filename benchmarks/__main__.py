"""Measure everything, print the table, write docs/benchmarks.md. Ends with 0 whatever it finds."""

import sys
from time import perf_counter

try:
    from benchmarks import asgi, calls, imports, memory, metrics, waiters
except ModuleNotFoundError as error:
    sys.exit(f"benchmarks: {error.name} is not installed; `make bench` installs all that is needed")

from benchmarks.page import write_limits
from benchmarks.report import Row, markdown, plain, summary
from benchmarks.timing import ROUNDS


def main() -> None:
    """Run it all."""
    start = perf_counter()
    rows: list[Row] = []
    for part in (calls, metrics, waiters, memory, asgi, imports):
        name = part.__name__.rpartition(".")[2]
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows += part.measure()
    text = markdown(rows, seconds=perf_counter() - start, rounds=ROUNDS)
    print(f"{plain(rows)}\n\n{summary(rows)}\nwritten: {write_limits(text)}")


if __name__ == "__main__":
    main()
