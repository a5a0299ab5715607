"""Structured fields (RFC 9651), as far as rate limits are written in them: items with parameters.

A field that is malformed anywhere is None as a whole, as the standard asks. Inner lists are none
of ours and count as malformed.
"""

import re
from typing import Final, NamedTuple, TypeAlias

__all__ = ["Bare", "Item", "Token", "parse_dictionary", "parse_list"]

_LONGEST: Final = 8192  # characters of a field that is looked at


class Token(str):
    """A bare item without quotes, so that it can be told from a string."""

    __slots__ = ()


#: A bare item. Byte sequences, dates and display strings are kept as they are written.
Bare: TypeAlias = int | float | str | bool


class Item(NamedTuple):
    """A bare item and its parameters."""

    value: Bare
    parameters: dict[str, Bare]


_KEY: Final = re.compile(r"[a-z*][a-z0-9_.*-]*")
_SPACE: Final = re.compile(r" *")
_BLANK: Final = re.compile(r"[ \t]*")
_BARE: Final = re.compile(
    r"(?P<decimal>-?[0-9]{1,12}\.[0-9]{1,3})(?![0-9.])"
    r"|(?P<integer>-?[0-9]{1,15})(?![0-9.])"
    r'|"(?P<string>(?:[ !#-\[\]-~]|\\["\\])*)"'
    r"|(?P<token>[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*)"
    r"|:(?P<bytes>[A-Za-z0-9+/]*={0,2}):"
    r"|\?(?P<boolean>[01])"
    r"|@(?P<date>-?[0-9]{1,15})(?![0-9.])"
    r'|%"(?P<display>(?:[ !#$&-~]|%[0-9a-f]{2})*)"'
)


class _Malformed(Exception):
    pass


class _Text:
    """A field's text, and how far it is read."""

    def __init__(self, text: str) -> None:
        self.text = text.strip(" ")
        self.at = 0

    def skip(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def eat(self, character: str) -> bool:
        found = self.text.startswith(character, self.at)
        self.at += found
        return found

    def has_ended(self) -> bool:
        return self.at >= len(self.text)

    def bare(self) -> Bare:
        match = _BARE.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise _Malformed
        self.at = match.end()
        found = match[match.lastgroup]
        match match.lastgroup:
            case "integer":
                return int(found)
            case "decimal":
                return float(found)
            case "string":
                return re.sub(r"\\(.)", r"\1", found)
            case "token":
                return Token(found)
            case "boolean":
                return found == "1"
            case _:
                return found

    def key(self) -> str:
        key = self.skip(_KEY)
        if key is None:
            raise _Malformed
        return key

    def parameters(self) -> dict[str, Bare]:
        found: dict[str, Bare] = {}
        while self.eat(";"):
            self.skip(_SPACE)
            key = self.key()
            found[key] = self.bare() if self.eat("=") else True
        return found

    def goes_on(self) -> bool:
        """Whether another member follows, after a comma."""
        self.skip(_BLANK)
        if self.has_ended():
            return False
        if not self.eat(","):
            raise _Malformed
        self.skip(_BLANK)
        if self.has_ended():
            raise _Malformed  # nothing after the last comma
        return True


def parse_list(text: str) -> list[Item] | None:
    """The members of a list; None if it is malformed, or empty."""
    source = _Text(text)
    if source.has_ended() or len(text) > _LONGEST:
        return None
    found = []
    try:
        while True:
            found.append(Item(source.bare(), source.parameters()))
            if not source.goes_on():
                return found
    except _Malformed:
        return None


def parse_dictionary(text: str) -> dict[str, Item] | None:
    """The members of a dictionary; None if it is malformed, or empty."""
    source = _Text(text)
    if source.has_ended() or len(text) > _LONGEST:
        return None
    found = {}
    try:
        while True:
            key = source.key()
            value = source.bare() if source.eat("=") else True
            found[key] = Item(value, source.parameters())
            if not source.goes_on():
                return found
    except _Malformed:
        return None
