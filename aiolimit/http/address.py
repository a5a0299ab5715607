"""Who calls: the address of the other end of the connection, or what a proxy we trust says of it.

1. By default it is the socket's other end and nothing else: whoever can write a header would
   choose the key. Forwarded headers are looked at only with a list of trusted networks, or a
   number of hops, and only as far as they were written by those.
2. They are read from the right. Each proxy adds who connected to it, so the last item is what our
   own proxy saw, and what stands further left is worth no more than the one who wrote it.
3. One client has one spelling: no port, no brackets, no zone, IPv4 not wrapped into IPv6; and
   IPv6 goes by its /64, which is what one customer has at least, 2^64 addresses to choose from.
4. Whatever is malformed counts for the proxy that handed it on, never as a key of its own.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any, Final, TypeAlias

__all__ = ["NO_PEER", "ClientAddress", "grouped", "nobody", "peer"]

_logger = logging.getLogger("aiolimit")

#: The key of all who come without an address, as over a unix socket: they share one.
NO_PEER: Final = "no peer"

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
RawHeaders: TypeAlias = Iterable[tuple[bytes, bytes]]

_UNIX: Final = "unix"
_MOST: Final = 64  # items of a header that are looked at, from the right
_LONGEST: Final = 100  # characters of an address with its zone and port
_PREFIX: Final = 64  # bits of an IPv6 address that name a customer
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OBFUSCATED: Final = re.compile(r"_[A-Za-z0-9._-]{1,64}")
_PAIR: Final = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]*))\s*')

_told: set[str] = set()


def peer(scope: Mapping[str, Any]) -> str:
    """The address of the socket's other end, without its port; of IPv6 the /64.

    Headers are not looked at. Where the server knows none (a unix socket, some test clients) all
    callers share the key `NO_PEER`, and the log says so once: give a `key` function there.
    """
    client = scope.get("client")
    if client:
        host: str = client[0]
        if host:
            return grouped(host) if ":" in host else host
    return nobody()


def grouped(host: str, ipv6_prefix: int = _PREFIX) -> str:
    """The spelling of an address that is a key, and that of its network for IPv6."""
    address = _parsed(host)
    return host if address is None else _spelled(address, ipv6_prefix)


def nobody() -> str:
    """The key of who has no address; says so in the log, once."""
    if not _told:
        _told.add(NO_PEER)
        _logger.warning(
            "requests come without a client address and share one limit: "
            "give RateLimitMiddleware a key function"
        )
    return NO_PEER


class ClientAddress:
    """The address of the client behind proxies, as a key: give it to a middleware as `key`.

    ```python
    key = ClientAddress(trusted_proxies=["10.0.0.0/8"])
    ```

    trusted_proxies: networks of the proxies whose word counts. The first address from the right
        that is in none of them is the client's. "unix" trusts what comes without an address.
    trusted_hops: in place of that, how many proxies there always are: the client is so many steps
        left of the peer. Wrong where anyone can reach the server past one of them.
    header: what the proxies write: "x-forwarded-for", or "forwarded" (RFC 7239).
    single: headers with one address in them, by name, such as "cf-connecting-ip", each with the
        networks from which it is believed: the address found so far must be in them, as others
        hand such a header through untouched.
    ipv6_prefix: how many bits of an IPv6 address make the key, 1 to 128.

    Raises `ValueError` or `TypeError` for networks, names or numbers that are none.
    """

    __slots__ = ("_header", "_hops", "_prefix", "_single", "_trusted", "_trusts_unix")

    def __init__(
        self,
        *,
        trusted_proxies: Collection[str] = (),
        trusted_hops: int = 0,
        header: str = "x-forwarded-for",
        single: Mapping[str, Collection[str]] | None = None,
        ipv6_prefix: int = _PREFIX,
    ) -> None:
        if isinstance(trusted_hops, bool) or not isinstance(trusted_hops, int) or trusted_hops < 0:
            raise ValueError(f"trusted_hops must be a whole number from 0 up, not {trusted_hops!r}")
        if trusted_hops and trusted_proxies:
            raise ValueError("give trusted_proxies or trusted_hops, not both")
        if header not in ("x-forwarded-for", "forwarded"):
            raise ValueError(
                f'header must be "x-forwarded-for" or "forwarded", not {header!r}; one that holds '
                "a single address goes into `single`"
            )
        if isinstance(ipv6_prefix, bool) or not isinstance(ipv6_prefix, int):
            raise TypeError(f"ipv6_prefix must be a whole number, not {ipv6_prefix!r}")
        if not 1 <= ipv6_prefix <= 128:
            raise ValueError(f"ipv6_prefix must be 1 to 128, not {ipv6_prefix!r}")
        _check_names(trusted_proxies, "trusted_proxies")
        self._trusts_unix = _UNIX in trusted_proxies
        self._trusted = _networks(name for name in trusted_proxies if name != _UNIX)
        self._hops = trusted_hops
        self._header = header.encode()
        self._prefix = ipv6_prefix
        self._single: dict[bytes, tuple[Network, ...]] = {}
        for name, networks in (single or {}).items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError(f"single must have names of headers, not {name!r}")
            _check_names(networks, f"single[{name!r}]")
            self._single[name.lower().encode()] = _networks(networks)

    def __call__(self, scope: Mapping[str, Any]) -> str:
        """The key of an ASGI request or websocket."""
        client = scope.get("client")
        return self.of(client[0] if client else None, scope.get("headers", ()))

    def of(self, peer: str | None, headers: RawHeaders) -> str:
        """The key of a request from that peer (None where there is none) with those headers."""
        address = _parsed(peer) if peer else None
        found: Address | str | None = address if address is not None else peer
        if self._hops:
            found = self._by_hops(found, headers)
        elif self._is_trusted(found):
            found = self._by_trust(found, headers)
        if self._single and not isinstance(found, str):
            found = self._by_name(found, headers)
        if found is None or found == "":
            return nobody()
        return found if isinstance(found, str) else _spelled(found, self._prefix)

    def _is_trusted(self, found: Address | str | None) -> bool:
        if found is None or found == "":
            return self._trusts_unix
        return not isinstance(found, str) and _is_in(found, self._trusted)

    def _by_trust(self, found: Address | str | None, headers: RawHeaders) -> Address | str | None:
        for node in self._nodes(headers):
            if node is None:
                break
            found = node
            if not self._is_trusted(found):
                break
        return found

    def _by_hops(self, found: Address | str | None, headers: RawHeaders) -> Address | str | None:
        nodes = self._nodes(headers)[: self._hops]
        if len(nodes) < self._hops:
            return found  # it did not come through all of them
        for node in nodes:
            if node is None:
                break
            found = node
        return found

    def _by_name(self, found: Address | None, headers: RawHeaders) -> Address | None:
        if found is None:
            return None
        for name, networks in self._single.items():
            values = [value for other, value in headers if other == name]
            if len(values) == 1 and _is_in(found, networks):
                return _parsed(values[0].decode("latin-1")) or found
        return found

    def _nodes(self, headers: RawHeaders) -> list[Address | str | None]:
        """Who the proxies say connected to them, the last first; None for what is malformed."""
        nodes: list[Address | str | None] = []
        lines = [value for name, value in headers if name == self._header]
        # Each line by itself: what one leaves open must not swallow the next.
        for line in reversed(lines):
            if len(nodes) >= _MOST:
                break
            if self._header == b"forwarded":
                nodes += [_node(item) for item in _forwarded(line.decode("latin-1"))]
            else:
                items = line.rsplit(b",", _MOST)[-_MOST:]
                nodes += [_parsed(item.decode("latin-1")) for item in reversed(items)]
        return nodes[:_MOST]


def _check_names(names: object, what: str) -> None:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise TypeError(f"{what} must be a collection of networks, not {names!r}")


def _networks(names: Iterable[str]) -> tuple[Network, ...]:
    made = []
    for name in names:
        try:
            made.append(ip_network(name))
        except ValueError as error:
            raise ValueError(f"{name!r} is no network such as '10.0.0.0/8': {error}") from None
    return tuple(made)


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _parsed(text: str) -> Address | None:
    """An address in any spelling: with port or brackets, a zone, or IPv4 inside IPv6."""
    text = text.strip(" \t")
    return _read(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=4096)
def _read(text: str) -> Address | None:
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or not _is_port(port):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and text[1:].isascii() and text[1:].isdigit())


def _spelled(address: Address, ipv6_prefix: int) -> str:
    if isinstance(address, IPv4Address) or ipv6_prefix == 128:
        return str(address)
    if address.is_link_local or address.is_loopback:
        return str(address)  # all of a link have one prefix, and this machine is one
    return str(IPv6Network((address, ipv6_prefix), strict=False))


def _forwarded(text: str) -> list[str]:
    """The `for` of each element of a `Forwarded` header, the last first; "" where it has none.

    Where the quotes of one do not match, nothing to its left can be told apart.
    """
    found: list[str] = []
    element, at = "", 0
    while True:
        while match := _PAIR.match(text, at):
            if match[1].lower() == "for":
                quoted = match[2]
                element = match[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            at = match.end()
            if not text.startswith(";", at):
                break
            at += 1
        if at >= len(text) or text[at] == ",":
            found.append(element)
            element = ""
            at += 1
            if at > len(text):
                return found[::-1][:_MOST]
        else:
            # Malformed from here to the next comma, and with it all that was read before.
            at = text.find(",", at)
            found, element = [""], ""
            if at < 0:
                return found
            at += 1


def _node(text: str) -> Address | str | None:
    """A node of RFC 7239, section 6: an address, or a name that a proxy has made up for one."""
    if _OBFUSCATED.fullmatch(text):
        return text
    return _parsed(text)
