"""What all tests share: examples that are drawn are not timed.

A processor that others want makes any of them late, and hypothesis would take that for a fault of what is tested.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
