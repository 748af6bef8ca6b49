"""`octavo serve` with other arguments again and again, each time until it ends by itself.

    python starts_in_turn.py '[["MODEL", "--flag"], ...]'

One process for all, since most of a start is importing torch. Writes a line of JSON for each: the exit code and what it
wrote to its standard error, which is caught where it leaves the process, so that nothing is missed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from octavo_engine import cli


def main(starts: list[list[str]]) -> None:
    """Until one serves, which none should: nobody would end it."""
    for arguments in starts:
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), sys.stderr.fileno())
            code = cli.main(["serve", *arguments])
            sys.stderr.flush()
            said.seek(0)
            answer = {"code": code, "output": said.read().decode("utf-8", "replace")}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # the management ports of all these starts are still open


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
