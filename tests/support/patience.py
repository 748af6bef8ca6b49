"""How long a test waits for what must happen: until it is certain that it hangs.

Such a deadline measures nothing. Stages of the tests run beside each other, on machines that may have two processors,
so that what takes a second now may take twenty the next time; what ends a wait is the fact that was waited for.
"""

from __future__ import annotations

PATIENCE_SECONDS = 240.0
