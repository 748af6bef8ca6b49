"""Runs in vLLM's environment, not in ours: vLLM's own load client, as `vllm bench serve` runs it, many times over.

Each line of the standard input is a JSON list of its arguments; each answer is a JSON string, empty when all went well.
Importing vLLM takes longer than most loads: so it is done once.
"""

import json
import sys
import traceback

from vllm.benchmarks.serve import add_cli_args, main  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]


def run(arguments: list[str]) -> str:
    """What went wrong, or nothing."""
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    try:
        main(parser.parse_args(arguments))
    except (Exception, SystemExit):
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # the client prints a report
    print(json.dumps(""), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)
