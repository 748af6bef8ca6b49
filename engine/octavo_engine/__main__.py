"""`python -m octavo_engine` is `octavo`."""

import sys

from octavo_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
