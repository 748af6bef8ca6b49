"""On PYTHONPATH this makes a process whose wall clock is wrong by $CLOCK_SKEW_SECONDS; monotonic time is right.

TLS looks at the real clock: only what the program itself reads is wrong.
"""

import datetime
import os
import time

_SKEW = float(os.environ.get("CLOCK_SKEW_SECONDS", "0"))
_real_time, _RealDatetime = time.time, datetime.datetime


class _SkewedDatetime(_RealDatetime):
    """`now` is wrong; everything else is as it was."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _RealDatetime.now(tz) + datetime.timedelta(seconds=_SKEW)


def _skewed_time() -> float:
    return _real_time() + _SKEW


time.time = _skewed_time
datetime.datetime = _SkewedDatetime  # type: ignore[misc]
