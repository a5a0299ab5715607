"""Where an engine is, read from a URL, as `redis-py` and `limits` write it."""

from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["Address", "Kind", "address_of"]

Kind = Literal["single", "cluster", "sentinel"]

_FORMS: Final = (
    "write redis://host:6379/0, rediss:// for TLS, unix:///path, redis+cluster://host1,host2 or "
    "redis+sentinel://host1:26379,host2:26379/service/0; valkey in place of redis is the same"
)
_PORTS: Final[dict[Kind, int]] = {"single": 6379, "cluster": 6379, "sentinel": 26379}


class Address(NamedTuple):
    """One server, the first nodes of a cluster, or the sentinels of a service.

    package: the client that is preferred, "redis" or "valkey".
    url: of a single server, as that client reads it.
    options: of the connection, such as `username`, as text.
    """

    kind: Kind
    package: Literal["redis", "valkey"]
    url: str
    hosts: tuple[tuple[str, int], ...]
    service: str
    options: dict[str, str | int | bool]
    sentinel_options: dict[str, str]

    @property
    def shown(self) -> str:
        """For a log: without the password."""
        scheme = self.url.split("://")[0]
        where = ",".join(f"{host}:{port}" for host, port in self.hosts) or urlsplit(self.url).path
        return f"{scheme}://{where}{'/' if self.service else ''}{self.service}"


def address_of(url: str) -> Address:
    """Read a URL. Raises `ValueError` for what is none, without telling its password."""
    parts = urlsplit(url)
    scheme, _, form = parts.scheme.partition("+")
    kinds: dict[str, Kind] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
    kind = kinds.get(form)
    known = ("redis", "rediss", "valkey", "valkeys", "unix")
    if kind is None or scheme not in known or (scheme == "unix" and form):
        raise ValueError(f"a store is at a URL, not one that begins with {url[:12]!r}: {_FORMS}")
    package: Literal["redis", "valkey"] = "valkey" if scheme.startswith("valkey") else "redis"
    if kind == "single":
        hosts = () if scheme == "unix" else _hosts(parts.netloc, 6379)
        if len(hosts) > 1:
            raise ValueError(f"one server has one host, not {len(hosts)}: {_FORMS}")
        return Address(kind, package, url, hosts, "", {}, {})
    options: dict[str, str | int | bool] = dict(parse_qsl(parts.query))
    user, _, _ = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    if name:
        options["username"] = unquote(name)
    if password:
        options["password"] = unquote(password)
    if scheme in ("rediss", "valkeys"):
        options["ssl"] = True
    path = [part for part in parts.path.split("/") if part]
    service = ""
    if kind == "sentinel":
        if not path:
            raise ValueError(f"redis+sentinel:// needs the name of the service: {_FORMS}")
        service = unquote(path.pop(0))
    if path:
        if len(path) > 1 or not path[0].isdigit():
            raise ValueError(f"a database is a number, not {'/'.join(path)!r}: {_FORMS}")
        if kind == "sentinel":
            options["db"] = int(path[0])
        elif path[0] != "0":
            raise ValueError(f"a cluster has the database 0 only, not {path[0]}")
    of_sentinels = {
        name.removeprefix("sentinel_"): str(options.pop(name))
        for name in list(options)
        if name.startswith("sentinel_")
    }
    hosts = _hosts(parts.netloc, _PORTS[kind])
    return Address(kind, package, url, hosts, service, options, of_sentinels)


def _hosts(netloc: str, port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for one in netloc.rpartition("@")[2].split(","):
        try:
            parts = urlsplit(f"//{one}")
            found.append((parts.hostname or "localhost", parts.port or port))
        except ValueError:
            raise ValueError(f"cannot read the host {one!r}: {_FORMS}") from None
    return tuple(found)
