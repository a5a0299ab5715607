"""`python -m aiolimit` is the command `aiolimit`."""

import sys

from aiolimit.cli import main

if __name__ == "__main__":
    sys.exit(main())
