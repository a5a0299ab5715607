"""An asyncio-native rate limiter that is never over its limit."""

from aiolimit.errors import CostTooHigh, Overloaded, QueueFull, RateLimited
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit
from aiolimit.rate import UNLIMITED, Rate
from aiolimit.report import Explanation, Quota, Statistics

__all__ = [
    "UNLIMITED",
    "CostTooHigh",
    "Explanation",
    "Limiter",
    "Overloaded",
    "Permit",
    "QueueFull",
    "Quota",
    "Rate",
    "RateLimited",
    "Statistics",
]

__version__ = "0.1.0"
