"""Where an engine is, read from a URL as `redis-py` and `limits` write it, and a client for it."""

import contextlib
import importlib
import warnings
from collections.abc import AsyncGenerator, Iterator, Sequence
from math import inf
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

__all__ = ["Address", "Kind", "Place", "address_of", "closing", "is_cluster", "package_of"]

Kind = Literal["single", "cluster", "sentinel"]

_FORMS: Final = (
    "write redis://host:6379/0, rediss:// for TLS, unix:///path, redis+cluster://host1,host2 or "
    "redis+sentinel://host1:26379,host2:26379/service/0; valkey in place of redis is the same"
)
_SCHEMES: Final = ("redis", "rediss", "valkey", "valkeys", "unix")
_KINDS: Final[dict[str, Kind]] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_PORTS: Final[dict[Kind, int]] = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_CLIENTS: Final = ("Redis", "RedisCluster", "Valkey", "ValkeyCluster")
_ATTEMPTS: Final = "cluster_error_retry_attempts"
_CONNECTIONS: Final = 8
_INSTALL: Final = "pip install 'aiolimit-core[redis]', or 'aiolimit-core[valkey]'"


class Address(NamedTuple):
    """One server, the first nodes of a cluster, or the sentinels of a service.

    package: the client that is preferred, "redis" or "valkey".
    url: of a single server, as that client reads it.
    login: the `username` and the `password`, `options`: of the connection, as the query has them,
        and `sentinel_options`: of those to sentinels; of a single server they are in its URL.
    """

    kind: Kind
    package: Literal["redis", "valkey"]
    url: str
    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int
    is_encrypted: bool
    login: dict[str, str]
    options: dict[str, str]
    sentinel_options: dict[str, str]

    @property
    def shown(self) -> str:
        """For a log: without the password."""
        scheme = self.url.split("://")[0]
        where = ",".join(f"{host}:{port}" for host, port in self.hosts) or urlsplit(self.url).path
        return f"{scheme}://{where}{'/' if self.service else ''}{self.service}"


def _refused(why: str) -> ValueError:
    """The error for a URL that is none. What it says must not tell a password.

    So it repeats nothing that may be a part of one, where that has a sign such as "/" in it.
    """
    return ValueError(f"{why}: {_FORMS}")


def address_of(url: str) -> Address:
    """Read a URL. Raises `ValueError` for what is none, without telling its password."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else ())
        if parts.fragment:
            raise ValueError
    except ValueError:
        raise _refused("cannot read the URL; signs in a password are percent-encoded") from None
    scheme, _, form = parts.scheme.partition("+")
    kind = _KINDS.get(form)
    if kind is None or scheme not in _SCHEMES or (scheme == "unix" and form):
        begin = f"one that begins with {parts.scheme}://" if "://" in url else "text without ://"
        raise _refused(f"a store is at a URL, not {begin}")
    package: Literal["redis", "valkey"] = "valkey" if scheme.startswith("valkey") else "redis"
    user, _, place = parts.netloc.rpartition("@")
    if scheme == "unix":
        if place or not parts.path.strip("/"):
            raise _refused("unix:// needs the path of a socket, after a third /")
        return Address(kind, package, url, (), "", 0, False, {}, {}, {})
    service, database = _service_and_database(kind, parts.path)
    name, _, password = user.partition(":")
    login = {"username": unquote(name), "password": unquote(password)}
    return Address(
        kind,
        package,
        url,
        _hosts(kind, place),
        service,
        database,
        scheme in ("rediss", "valkeys"),
        {option: value for option, value in login.items() if value},
        {option: value for option, value in query.items() if not option.startswith("sentinel_")},
        {
            option.removeprefix("sentinel_"): value
            for option, value in query.items()
            if option.startswith("sentinel_")
        },
    )


def _service_and_database(kind: Kind, text: str) -> tuple[str, int]:
    path = [part for part in text.split("/") if part]
    service = ""
    if kind == "sentinel":
        if not path or "@" in path[0]:
            raise _refused("redis+sentinel:// needs the name of the service")
        service = unquote(path.pop(0))
    if not path:
        return service, 0
    if len(path) > 1 or not (path[0].isascii() and path[0].isdigit()):
        raise _refused("what follows the host must be the number of a database")
    if kind == "cluster" and int(path[0]):
        raise _refused("a cluster has the database 0 only")
    return service, int(path[0])


def _hosts(kind: Kind, place: str) -> tuple[tuple[str, int], ...]:
    found = []
    for one in place.split(","):
        try:
            parts = urlsplit(f"//{one}")
            found.append((parts.hostname or "localhost", parts.port or _PORTS[kind]))
        except ValueError:
            raise _refused("cannot read a host or its port") from None
    if kind == "single" and len(found) > 1:
        raise _refused(f"one server has one host, not {len(found)}")
    return tuple(found)


# --- clients -----------------------------------------------------------------------------------


class Place:
    """An engine at a URL, of which a client is made, or a client that was handed in.

    shown: for a log, without a password. owns: whether its clients are to be closed.
    timeout: seconds that an engine at a URL has to answer.
    """

    __slots__ = ("_address", "_given", "_timeout", "owns", "shown")

    def __init__(self, url_or_client: Any, timeout: float) -> None:
        self._timeout = timeout
        self._address: Address | None = None
        self._given: Any = None
        self.owns = isinstance(url_or_client, str)
        if self.owns:
            self._address = address_of(url_or_client)
            self.shown = self._address.shown
            self.client()  # raises here what would not work later
        else:
            self._given = _checked(url_or_client)
            self.shown = _shown(url_or_client)

    def client(self) -> Any:
        """That client, or another of our own."""
        if self._address is None:
            return self._given
        return _client_for(self._address, self._timeout)


def _client_for(address: Address, timeout: float) -> Any:
    """A client with settings of our own: short deadlines, and nothing is tried again.

    It has no connection yet, and needs no event loop. Raises `ValueError` for options that it does
    not know, and `ImportError` without a package.
    """
    name = _package(address.package)
    try:
        client = _made(address, name, timeout)
        for options, connection in _connections(client):
            connection(**options)  # connects later, but knows its options
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the options')
        raise _refused(f"the options of the URL do not fit: {error}") from None
    return client


def _package(preferred: str) -> str:
    """The client that is installed, of two the preferred one."""
    others = ("valkey", "redis") if preferred == "valkey" else ("redis", "valkey")
    for name in others:
        try:
            return importlib.import_module(name).__name__
        except ImportError:
            continue
    raise ImportError(f"no client for Redis or Valkey is installed: {_INSTALL}")


def _made(address: Address, name: str, timeout: float) -> Any:
    asynchronous = importlib.import_module(f"{name}.asyncio")
    retry = importlib.import_module(f"{name}.asyncio.retry").Retry
    no_pause = importlib.import_module(f"{name}.backoff").NoBackoff
    pool = asynchronous.ConnectionPool

    def settings(seconds: float, options: dict[str, str]) -> dict[str, Any]:
        ours: dict[str, Any] = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        ours["retry"] = retry(no_pause(), 0)
        for option, text in options.items():  # they mean what they do in its own URLs
            read = pool.from_url(f"{name}://?{urlencode({option: text})}")
            value = read.connection_kwargs.get(option, read.max_connections)
            ours[option] = text if isinstance(value, str) else value
            if option == "ssl":  # which has no place there
                ours[option] = text.lower() not in ("0", "false", "no")
        return ours

    if address.kind == "single":
        scheme, _, rest = address.url.partition("://")
        scheme = scheme.lower().replace("valkey", name).replace("redis", name)
        ours = {**settings(timeout, {}), "max_connections": _CONNECTIONS}
        return asynchronous.from_url(f"{scheme}://{rest}", **ours)
    options = {"max_connections": _CONNECTIONS, "ssl": address.is_encrypted, **address.login}
    options |= settings(timeout, address.options)
    if address.kind == "cluster":
        module = importlib.import_module(f"{name}.asyncio.cluster")
        nodes = [module.ClusterNode(host, port) for host, port in address.hosts]
        made = module.ValkeyCluster if name == "valkey" else module.RedisCluster
        if name == "valkey" or importlib.import_module(name).__version__.startswith("5."):
            options[_ATTEMPTS] = 0  # of redis-py 6 and later `retry` says that
        return made(startup_nodes=nodes, require_full_coverage=False, **options)
    # One that says nothing leaves the others time enough to answer; and TLS is for them, too.
    each = timeout / (len(address.hosts) + 1)
    tls = {option: one for option, one in address.options.items() if option.startswith("ssl_")}
    of_sentinels = {
        "ssl": address.is_encrypted,
        **settings(each, {**tls, **address.sentinel_options}),
    }
    module = importlib.import_module(f"{name}.asyncio.sentinel")
    watch = module.Sentinel(address.hosts, sentinel_kwargs=of_sentinels)
    return watch.master_for(address.service, **{"db": address.database, **options})


def _connections(client: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """With which options it connects, and what makes a connection of them."""
    if is_cluster(client):
        for node in client.nodes_manager.startup_nodes.values():
            yield node.connection_kwargs, node.connection_class
    else:
        for pool in (one.connection_pool for one in _clients_in(client)):
            yield pool.connection_kwargs, pool.connection_class


def _clients_in(client: Any) -> Sequence[Any]:
    """A client, and those that it asks where the master is."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return (client, *getattr(manager, "sentinels", ()))


async def closing(client: Any) -> AsyncGenerator[None]:
    """Closes all connections of a client when it ends; its own `aclose` leaves some open."""
    async with contextlib.AsyncExitStack() as stack:
        for one in _clients_in(client):
            stack.push_async_callback(one.aclose)
        if is_cluster(client):
            aclose = client.nodes_manager.aclose
            stack.push_async_callback(aclose)
            stack.push_async_callback(aclose, "startup_nodes")
        yield


def is_cluster(client: Any) -> bool:
    """Whether it is the client of a cluster."""
    return hasattr(client, "nodes_manager")


def package_of(client: Any) -> str:
    """Of which package a client is, "redis" or "valkey"; "" for what is none."""
    bases = [base for base in type(client).__mro__ if base.__name__ in _CLIENTS]
    if bases and not hasattr(client, "command_stack"):  # a pipeline has that
        name, _, module = bases[-1].__module__.partition(".")
        if name in ("redis", "valkey") and module.startswith("asyncio."):
            return name
    return ""


def _shown(client: Any) -> str:
    """A client in a log: its own `repr` may tell its password."""
    kind = type(client).__name__
    if is_cluster(client):
        return f"{kind} of {','.join(client.nodes_manager.startup_nodes)}"
    pool = client.connection_pool
    if hasattr(pool, "service_name"):
        return f"{kind} of {pool.service_name}"
    options = pool.connection_kwargs
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return f"{kind} of {options.get('path') or f'{host}:{port}'}"


def _checked(client: Any) -> Any:
    """A client that was handed in; warns where it would do a call twice."""
    if not package_of(client):
        kind = type(client).__qualname__
        raise TypeError(
            f"a store is at a URL, or a client of redis.asyncio or valkey.asyncio, not {kind!r}"
        )
    if times := _repeats(client):
        often = "for ever" if times == inf else f"up to {times} times"
        also = ", cluster_error_retry_attempts=0" if hasattr(client, _ATTEMPTS) else ""
        warnings.warn(
            f"{_shown(client)} tries failed calls again, {often}: what was charged then is charged "
            f"twice. Make it with retry=Retry(NoBackoff(), 0){also}, or give RedisStore the URL",
            RuntimeWarning,
            stacklevel=4,
        )
    return client


def _repeats(client: Any) -> float:
    """How often it tries a failed call again."""
    times: float = 0
    if is_cluster(client):
        retry, times = client.retry, getattr(client, _ATTEMPTS, 0)
    else:
        ((options, connection), *_) = _connections(client)
        retry = connection(**options).retry  # the client's own may be None, and it is 1
    retries = getattr(retry, "_retries", 0)
    return inf if retries < 0 else max(retries, times)
