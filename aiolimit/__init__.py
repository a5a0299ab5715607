"""An asyncio-native rate limiter that is never over its limit."""

from aiolimit.errors import (
    CostTooHigh,
    Overloaded,
    QueueFull,
    RateLimited,
    StoreError,
    StoreUnavailable,
)
from aiolimit.limiter import Limiter
from aiolimit.load.controller import LoadController
from aiolimit.load.law import LoadState
from aiolimit.permit import Permit
from aiolimit.quota import Quota
from aiolimit.rate import UNLIMITED, Rate
from aiolimit.report import Explanation, Statistics
from aiolimit.warmup import WarmUp

__all__ = [
    "UNLIMITED",
    "CostTooHigh",
    "Explanation",
    "Limiter",
    "LoadController",
    "LoadState",
    "Overloaded",
    "Permit",
    "QueueFull",
    "Quota",
    "Rate",
    "RateLimited",
    "Statistics",
    "StoreError",
    "StoreUnavailable",
    "WarmUp",
]

__version__ = "0.1.0"
