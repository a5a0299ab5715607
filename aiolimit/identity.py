"""What there is one of: whoever copies it gets the same, and nobody takes it to another process."""

from typing import Any, Self, TypeVar

__all__ = ["OneOfAKind"]

T = TypeVar("T", bound="OneOfAKind")


class OneOfAKind:
    """Frameworks copy what they are given, some deeply; a copy would count by itself, or twice."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce_ex__(self, _protocol: object) -> Any:
        raise TypeError(f"{self!r} is of this process: make another one in the other process")
