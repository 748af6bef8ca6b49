"""`python -m demo` tells the story; `python -m demo down` removes everything it made."""

from __future__ import annotations

import sys

from demo import story
from node.shell import guarded

if __name__ == "__main__":
    sys.exit(guarded(story.remove if sys.argv[1:] == ["down"] else story.tell))
