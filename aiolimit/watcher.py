"""Who keeps the counts of limiters that have gone: load controllers, and who tells of metrics."""

from typing import Any, Protocol

__all__ = ["Watcher", "watched_by"]


class Watcher(Protocol):
    """Is told when a limiter that it watches is about to go."""

    def depart(self, limiter: Any, /) -> None:
        """Take the counts over: nobody holds it any more."""
        ...

    def is_over(self) -> bool:
        """Whether nobody will ever ask it for those counts again."""
        ...


def watched_by(watchers: tuple[Watcher, ...], watcher: Watcher) -> tuple[Watcher, ...]:
    """Those watchers and one more, without those that are over."""
    return (*(one for one in watchers if not one.is_over()), watcher)
