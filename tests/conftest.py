"""What all tests share."""

import os

from hypothesis import HealthCheck, settings

# No deadlines: they would time a shared machine, not the code. In CI the cases are the same each
# time; elsewhere each run tries new ones.
settings.register_profile(
    "aiolimit",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("aiolimit")
