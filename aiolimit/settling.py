"""The true cost, told after use: what a permit turns out to cost is charged or given back."""

from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from aiolimit.admission import Admission
    from aiolimit.permit import Permit

__all__ = ["settle"]


def settle(admission: "Admission", permit: "Permit", cost: float) -> None:
    """Charge or give back the difference between what the permit cost and what it costs."""
    if not permit._is_granted:
        raise RuntimeError(f"{permit!r} is not granted: await or enter it first")
    limits = admission.limits_of(permit._own_limit, strict=False)
    queues = admission.queues
    if get_ident() != queues.thread or queues.is_elsewhere():
        queues.check_loop(to_serve=True)
    more = cost - permit.cost
    permit._cost = cost
    if all(limit is None for limit in limits):
        return
    now = admission.time()
    layout = getattr(permit, "_layout", None)
    later = getattr(permit, "_later", [])
    home = getattr(permit, "_home", permit.key)
    first_at = getattr(permit, "_charged_at", permit._at)
    if more > 0:
        home = admission.home(permit.key, now)
        at = admission.quota.charge(home, more, limits, now)
        permit._later = [*later, (at, more, home)]
        admission.reconsider(home)
    while more < 0:
        # The latest charge first: it has the longest to go.
        at, charged, its_home = later.pop() if later else (cast(float, first_at), inf, home)
        part = min(charged, -more)
        admission.quota.give_back(its_home, part, limits, layout, now, at)
        if part < charged < inf:
            later.append((at, charged - part, its_home))
        more += part
        queues.serve(its_home)
