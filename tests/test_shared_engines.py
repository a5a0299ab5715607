"""Wherever an engine is, and whatever befalls it, a limiter uses it as a user would expect."""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from redis.backoff import NoBackoff
from redis.crc import key_slot
from valkey.backoff import NoBackoff as ValkeyNoBackoff

from aiolimit import Limiter, Permit, RateLimited, StoreError, StoreUnavailable
from aiolimit.redis import RedisStore
from tests.engines import Engine, cluster, engine, redis_server, sentinel
from tests.serving import free_port

ROOT = Path(__file__).parent.parent
LATE = 0.4  # seconds that a busy machine may add to a call
HARD = "s3cr3t-/:@?#%"  # to write in a URL
QUOTED = "s3cr3t-%2F%3A%40%3F%23%25"

Stores = Callable[..., RedisStore]


@pytest.fixture
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    """Makes stores whose keys are those of one test, and closes them."""
    made: list[RedisStore] = []

    def make(url_or_client: Any, **options: Any) -> RedisStore:
        made.append(RedisStore(url_or_client, prefix=f"{request.node.name}:", **options))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()


@pytest.fixture(scope="module")
def server() -> Iterator[Engine]:
    with engine() as one:
        yield one


@pytest.fixture(scope="module")
def nodes() -> Iterator[Sequence[Engine]]:
    with cluster() as all_of_them:
        yield all_of_them


def at(*engines: Engine) -> str:
    return ",".join(f"127.0.0.1:{one.port}" for one in engines)


def cluster_url(nodes: Sequence[Engine]) -> str:
    return f"redis+cluster://{at(*nodes[:2])}"


async def admitted(limiter: Limiter, *keys: Hashable) -> list[Any]:
    """Those of some calls made at once that pass; the others are refused and nothing else."""
    calls = (limiter.acquire(key, max_wait=0) for key in keys)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, Permit) or type(outcome) is RateLimited, outcome
    return [one.key for one in outcomes if isinstance(one, Permit)]


async def source(limiter: Limiter, key: Hashable = "key") -> str:
    """Where it is decided that one call passes, which takes no longer than it may."""
    began = time.monotonic()
    permit = await limiter.acquire(key, max_wait=0)
    assert time.monotonic() - began < 0.2 + LATE
    return permit.source


async def until(limiter: Limiter, key: Hashable, wanted: str, seconds: float = 10) -> None:
    """Calls until decisions come from there."""
    found = ""
    try:
        async with asyncio.timeout(seconds):
            while (found := await source(limiter, key)) != wanted:
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"decisions still come from {found!r}, not {wanted!r}") from None


async def until_given_up(limiter: Limiter, key: Hashable) -> None:
    """Calls until the engine is not asked any more."""
    async with asyncio.timeout(5):
        while limiter._admission.is_store_up():
            assert await source(limiter, key) == "local"


# --- a cluster ---------------------------------------------------------------------------------


def node_of(nodes: Sequence[Engine], key: str) -> int:
    """Which node has a key: what is between the braces decides."""
    return key_slot(key.encode()) // (16384 // len(nodes) + 1)


def key_on(nodes: Sequence[Engine], node: int) -> str:
    return next(key for key in map(str, range(1000)) if node_of(nodes, key) == node)


@contextlib.asynccontextmanager
async def cluster_client(nodes: Sequence[Engine], package: str) -> AsyncIterator[Any]:
    where = "127.0.0.1", nodes[0].port
    if package == "redis":
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        made: Any = redis.asyncio.RedisCluster(*where, retry=retry)
    else:
        tries = valkey.asyncio.retry.Retry(ValkeyNoBackoff(), 0)
        made = valkey.asyncio.ValkeyCluster(*where, retry=tries, cluster_error_retry_attempts=0)
    async with made:
        yield made


@pytest.mark.parametrize("package", ["redis", "valkey"])
@pytest.mark.parametrize("is_handed_in", [False, True])
async def test_each_key_is_limited_by_itself_wherever_it_is(
    nodes: Sequence[Engine],
    stores: Stores,
    is_handed_in: bool,
    package: str,
    request: pytest.FixtureRequest,
) -> None:
    async with cluster_client(nodes, package) as client:
        url = cluster_url(nodes).replace("redis", package)
        store = stores(client if is_handed_in else url, timeout=2)
        limiter = Limiter("3/min", store=store)
        other = Limiter("3/min", store=store)
        keys = [f"user:{number}" for number in range(30)]
        # The first calls come before it is known which node has what.
        assert sorted(await admitted(limiter, *keys * 2)) == sorted(keys * 2)
        assert sorted(await admitted(other, *keys * 5)) == sorted(keys)
        assert (await limiter.peek_async("user:7")).remaining == 0
        assert {(await other.peek_async(key)).remaining for key in keys} == {0}
        begin = "".join(f"\\{sign}" if sign in "[]" else sign for sign in request.node.name)
        for number, node in enumerate(nodes):
            with node.client() as connected:
                found = len(list(connected.scan_iter(f"{begin}*", 1000)))
            mine = sum(node_of(nodes, key) == number for key in keys)
            assert found - mine in (0, 1)  # one has the list of the processes

        await limiter.reset_async("user:7")
        assert await admitted(limiter, "user:7", "user:8") == ["user:7"]
        await limiter.reset_async()
        assert sorted(await admitted(limiter, *keys * 5)) == sorted(keys * 3)
        await store.aclose()
        assert await client.ping(target_nodes=client.get_primaries())


async def test_several_rates_and_a_burst_in_a_cluster(
    nodes: Sequence[Engine], stores: Stores
) -> None:
    store = stores(cluster_url(nodes))
    keys = [key_on(nodes, node) for node in range(3)]
    two = Limiter("3/100ms", "4/min", name="two rates", store=store)
    assert sorted(await admitted(two, *keys * 5)) == sorted(keys * 3)
    for key in keys:
        permit = await two.acquire(key, max_wait=1)
        with pytest.raises(RateLimited) as refusal:
            await two.acquire(key, max_wait=1)
        assert refusal.value.rate.per == 60
        assert refusal.value.source == "store"
        permit.cancel()
        assert (await two.acquire(key, max_wait=1)).source == "store"

    paced = Limiter("20/s", burst=2, store=store)
    assert sorted(await admitted(paced, *keys * 5)) == sorted(keys * 2)
    third = await asyncio.gather(*(paced.acquire(key, max_wait=1) for key in keys))
    assert all(0.01 < permit.waited < 0.05 + LATE for permit in third)


async def test_a_slot_that_has_moved(nodes: Sequence[Engine], stores: Stores) -> None:
    limiter = Limiter("2/min", store=stores(cluster_url(nodes)))
    key = next(f"moved {n}" for n in range(1000) if node_of(nodes, f"moved {n}") == 0)
    assert await source(limiter, key_on(nodes, 1)) == "store"  # now it is known what is where
    slot = key_slot(key.encode())
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in nodes]
        home, new = (client.execute_command("CLUSTER MYID") for client in clients[:2])
        for client in (clients[1], clients[0], clients[2]):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", new)
        assert len(await admitted(limiter, *[key] * 4)) == 2
        assert (await limiter.peek_async(key)).remaining == 0
        await limiter.reset_async(key)
        assert await source(limiter, key) == "store"
        await limiter.reset_async()
        assert (await limiter.peek_async(key)).remaining == 2
        clients[1].flushall()  # a slot moves back when it is empty
        for client in clients:
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", home)


async def test_a_node_that_dies_takes_only_its_own_keys_along(
    nodes: Sequence[Engine], stores: Stores
) -> None:
    keys = [key_on(nodes, node) for node in (1, 2, 0)]
    url = cluster_url(nodes)
    # So high that the part of it that is asked for while others come back is enough.
    # A node that is dead refuses at once; the others may be slow where the machine is busy.
    async with cluster_client(nodes, "redis") as client, RedisStore(client, timeout=2) as handed_in:
        found = stores(url, timeout=2), stores(url.replace("redis", "valkey"), timeout=2), handed_in
        limiters = [Limiter("100000/s", store=store) for store in found]

        async def sources() -> list[list[str]]:
            return [[await source(limiter, key) for key in keys] for limiter in limiters]

        assert await sources() == [["store"] * 3] * 3
        nodes[0].kill()
        try:
            # While it is dead the others are found all the same, and from its address.
            late = Limiter("100000/s", store=stores(url, timeout=2))
            first = await asyncio.gather(*(source(late, key) for key in keys))
            assert first == ["store", "store", "local"]
            limiters.append(late)
            for limiter in limiters:
                await until_given_up(limiter, keys[2])
            began = time.monotonic()
            while time.monotonic() - began < 0.7:  # meanwhile it is tried again
                assert await sources() == [["store", "store", "local"]] * 4
        finally:
            nodes[0].start()
        for limiter in limiters:
            await until(limiter, keys[2], "store")
        assert await sources() == [["store"] * 3] * 4


async def test_a_cluster_is_found_while_one_of_its_nodes_says_nothing(
    nodes: Sequence[Engine], stores: Stores
) -> None:
    keys = [key_on(nodes, node) for node in range(3)]
    nodes[0].freeze()
    try:
        limiter = Limiter("1000/s", store=stores(cluster_url(nodes)))
        await until(limiter, keys[1], "store")
        assert await source(limiter, keys[0]) == "local"
    finally:
        nodes[0].thaw()
    await until(limiter, keys[0], "store")


async def test_what_a_replica_takes_over_goes_on() -> None:
    with cluster(3, replicas=1) as nodes:
        *_, master, replica = nodes
        async with RedisStore(cluster_url(nodes)) as store:
            limiter = Limiter("1000/s", store=store)
            key = key_on(nodes[:3], 2)
            assert await source(limiter, key) == "store"
            master.kill()
            await until_given_up(limiter, key)
            with replica.client() as client:
                client.execute_command("CLUSTER FAILOVER", "TAKEOVER")
            await until(limiter, key, "store")
            assert await source(limiter, key_on(nodes[:3], 0)) == "store"


# --- Sentinel, and replicas --------------------------------------------------------------------


@contextlib.contextmanager
def replicated() -> Iterator[tuple[Engine, Engine]]:
    """A master, and its replica once that is up to date."""
    with engine(None, "--repl-diskless-sync-delay", "0") as master:
        of_master = ("--replicaof", "127.0.0.1", str(master.port))
        with engine(None, *of_master) as replica, replica.client() as client:
            deadline = time.monotonic() + 20
            while client.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline, "the replica does not follow"
                time.sleep(0.02)
            yield master, replica


async def test_a_sentinel_promotes_the_replica(stores: Stores) -> None:
    with replicated() as (master, replica), sentinel(master) as watch:
        url = f"sentinel://{at(watch)}/mymaster/0"
        found = [(scheme, stores(f"{scheme}+{url}")) for scheme in ("redis", "valkey")]
        few = [Limiter("3/min", name=scheme, store=store) for scheme, store in found]
        many = [Limiter("1000/s", name="many", store=store) for _, store in found]
        for limiter in few:
            assert await admitted(limiter, *"aabbbbb") == list("aabbb")
        for limiter in many:
            assert await source(limiter) == "store"
        master.kill()
        for limiter in many:
            await until_given_up(limiter, "key")
        for limiter in many:
            await until(limiter, "key", "store")
        with replica.client() as client:
            assert client.info("replication")["role"] == "master"
        for limiter in few:
            assert await admitted(limiter, *"aabbb") == ["a"]  # it knows what the master knew


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_the_next_sentinel_is_asked_where_one_is_dead_or_says_nothing(
    server: Engine, stores: Stores, scheme: str
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with sentinel(server) as watch, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        silent = f"127.0.0.1:{listening.getsockname()[1]}"
        for first in (dead, silent):
            url = f"{scheme}+sentinel://{first},{at(watch)}/mymaster"
            assert await source(Limiter("1000/s", store=stores(url))) == "store"


async def test_a_replica_lets_nothing_through_until_it_is_promoted(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    with replicated() as (_, replica):
        limiter = Limiter("1000/s", store=stores(replica.url))
        strict = Limiter("1000/s", store=stores(replica.url, on_store_error="closed"))
        await until_given_up(limiter, "key")
        for _ in range(4):
            with pytest.raises(StoreUnavailable):
                await strict.acquire("key", max_wait=0)
        assert "READONLY" in caplog.text
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        await until(limiter, "key", "store")


async def test_a_master_that_becomes_a_replica(stores: Stores) -> None:
    with engine() as other, engine() as one:
        limiter = Limiter("1000/s", store=stores(one.url))
        assert await source(limiter) == "store"
        with one.client() as client:
            client.replicaof("127.0.0.1", other.port)
            await until_given_up(limiter, "key")
            client.replicaof("NO", "ONE")
        await until(limiter, "key", "store")


# --- who may come in, and by which way ---------------------------------------------------------

PERMITTED = (
    "+evalsha +eval +time +get +set +zadd +zrem +zremrangebyscore +zcard +zcount +pexpire "
    "+del +scan +unlink"
)


@pytest.fixture
def locked(server: Engine) -> Iterator[Engine]:
    """A server that wants a password, and has a user who may do what is needed only."""
    with server.client() as client:
        rules = ("~test_*", *PERMITTED.split())
        client.execute_command("ACL", "SETUSER", "ann", "on", f">{HARD}", *rules)
        client.config_set("requirepass", HARD)
        yield server
        client.config_set("requirepass", "")
        client.execute_command("ACL", "DELUSER", "ann")


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
@pytest.mark.parametrize("user", ["", "ann"])
async def test_a_password_in_the_url(
    locked: Engine, stores: Stores, scheme: str, user: str
) -> None:
    store = stores(f"{scheme}://{user}:{QUOTED}@127.0.0.1:{locked.port}")
    assert repr(store) == f"<RedisStore {scheme}://127.0.0.1:{locked.port}>"
    limiter = Limiter("3/min", store=store)
    assert await admitted(limiter, *"aaaab") == list("aaab")
    await limiter.reset_async("a")
    await limiter.reset_async()
    assert await admitted(limiter, *"aaaab") == list("aaab")


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_wrong_password_is_the_policys_business(
    locked: Engine, stores: Stores, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    url = f"{scheme}://ann:wr0ng-{QUOTED}@127.0.0.1:{locked.port}/0"
    limiter = Limiter("1000/s", store=stores(url))
    with caplog.at_level(logging.DEBUG, "aiolimit"):
        await until_given_up(limiter, "key")
    with pytest.raises(StoreError) as error:
        await limiter.reset_async("key")
    said = caplog.text + str(error.value) + repr(error.value.__cause__)
    assert f"{scheme}://127.0.0.1:{locked.port} does not answer" in said
    assert "wr0ng" not in said
    assert "s3cr3t" not in said


async def test_a_client_that_is_handed_in_does_not_tell_its_password(
    locked: Engine, stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    for package in redis, valkey:
        client = package.asyncio.from_url(
            f"{package.__name__}://ann:wr0ng-s3cr3t@127.0.0.1:{locked.port}"
        )
        store = stores(client)
        assert f"127.0.0.1:{locked.port}" in repr(store)
        limiter = Limiter("1000/s", store=store)
        await until_given_up(limiter, "key")
        await client.aclose()
        assert f"127.0.0.1:{locked.port} does not answer" in caplog.text
        assert "s3cr3t" not in caplog.text + repr(store)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key, and a certificate that it has signed itself."""
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1,DNS:localhost"
    command += f" -keyout {key} -out {made}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return key, made


@pytest.fixture(scope="module")
def with_tls(certificate: tuple[Path, Path]) -> Iterator[tuple[Engine, int]]:
    """A server, and its port for TLS."""
    key, made = map(str, certificate)
    port = free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", made, "--tls-key-file", key)
    with engine(redis_server(), *options, "--tls-auth-clients", "no") as one:
        yield one, port


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
async def test_tls(
    with_tls: tuple[Engine, int], certificate: tuple[Path, Path], stores: Stores, scheme: str
) -> None:
    _, port = with_tls
    url = f"{scheme}://127.0.0.1:{port}"
    for query in (f"ssl_ca_certs={certificate[1]}", "ssl_cert_reqs=none&ssl_check_hostname=false"):
        store = stores(f"{url}/0?{query}")
        assert repr(store) == f"<RedisStore {url}>"
        assert await source(Limiter("1000/s", store=store)) == "store"
    await until_given_up(Limiter("1000/s", store=stores(url)), "key")  # who has signed that?


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
async def test_tls_to_what_a_sentinel_watches(
    with_tls: tuple[Engine, int], certificate: tuple[Path, Path], stores: Stores, scheme: str
) -> None:
    """Both are spoken to by TLS, and options of the query are read as the client reads them."""
    key, made = map(str, certificate)
    one, port = with_tls
    own = free_port()
    options = ["--tls-port", str(own), "--tls-cert-file", made, "--tls-key-file", key]
    options += ["--tls-ca-cert-file", made, "--tls-auth-clients", "no", "--tls-replication", "yes"]
    with sentinel(one, redis_server(), *options, port=port) as plain_one:
        for rest in (
            f"{own}/mymaster?socket_timeout=1.5&ssl_ca_certs={made}",
            f"{own}/mymaster?ssl_cert_reqs=none&ssl_check_hostname=false",
            f"{plain_one.port}/mymaster?ssl_cert_reqs=none&sentinel_ssl=false",
        ):
            store = stores(f"{scheme}+sentinel://127.0.0.1:{rest}", timeout=2)
            assert await source(Limiter("1000/s", store=store)) == "store"


@pytest.mark.parametrize("query", ["", "?db=3"])
async def test_a_unix_socket(stores: Stores, tmp_path: Path, query: str) -> None:
    path = f"{tmp_path}/engine.sock"
    with engine(None, "--unixsocket", path):
        store = stores(f"unix://{path}{query}")
        assert repr(store) == f"<RedisStore unix://{path}>"
        assert await admitted(Limiter("3/min", store=store), *"aaaab") == list("aaab")


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_number_of_a_database_and_options(
    server: Engine, stores: Stores, scheme: str
) -> None:
    store = stores(f"{scheme.upper()}://127.0.0.1:{server.port}/3?protocol=3&socket_timeout=0.1")
    assert await source(Limiter("1000/s", store=store)) == "store"
    with server.client(db=3) as client:
        assert client.dbsize() == 2  # the key, and who lives
        client.flushdb()


# --- clients that are handed in ----------------------------------------------------------------


def retries(times: int) -> redis.asyncio.retry.Retry:
    return redis.asyncio.retry.Retry(NoBackoff(), times)


def plain(**options: Any) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(retry=retries(0), **options)


async def test_a_client_with_one_connection(server: Engine, stores: Stores) -> None:
    async with plain(port=server.port, max_connections=1) as client:
        store = stores(client, timeout=5)
        limiter = Limiter("1000/s", store=store)
        permits = await asyncio.gather(*(limiter.acquire(key) for key in range(500)))
        await store.aclose()
    assert {permit.source for permit in permits} == {"store"}


class OfOurOwn(redis.asyncio.Redis):
    """What instrumented clients are."""


CLIENTS: dict[str, Callable[[int], Any]] = {
    "plain": lambda port: plain(port=port),
    "decodes": lambda port: plain(port=port, decode_responses=True),
    "RESP2": lambda port: plain(port=port, protocol=2),
    "RESP3 decodes": lambda port: plain(port=port, protocol=3, decode_responses=True),
    "a single connection": lambda port: plain(port=port, single_connection_client=True),
    "a blocking pool": lambda port: redis.asyncio.Redis.from_pool(
        redis.asyncio.BlockingConnectionPool(port=port)
    ),
    "a subclass": lambda port: OfOurOwn(port=port, retry=retries(0)),
    "valkey": lambda port: valkey.asyncio.Valkey(port=port),
    "valkey decodes": lambda port: valkey.asyncio.Valkey(port=port, decode_responses=True),
    "valkey without retries": lambda port: valkey.asyncio.Valkey(
        port=port, retry=valkey.asyncio.retry.Retry(ValkeyNoBackoff(), 0)
    ),
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_client_is_used_as_it_is_and_left_open(
    server: Engine, stores: Stores, kind: str
) -> None:
    client = CLIENTS[kind](server.port)
    number = await client.client_id()
    store = stores(client, timeout=2)
    limiter = Limiter("3/min", store=store)
    keys = ["a", "\u00e4", "\ud800", 7]
    assert len(await admitted(limiter, *keys * 5)) == 12
    assert (await limiter.peek_async("a")).remaining == 0
    await limiter.reset_async("a")
    assert await admitted(limiter, *keys) == ["a"]
    await limiter.reset_async()
    assert len(await admitted(limiter, *keys * 5)) == 12
    await store.aclose()
    assert await client.client_id() == number
    await client.aclose()


TRYING_AGAIN: dict[str, Callable[[], Any]] = {
    "by default": redis.asyncio.Redis,
    "once": lambda: redis.asyncio.Redis(retry=retries(1)),
    "for ever": lambda: redis.asyncio.Redis(retry=retries(-1)),
    "on timeout": lambda: redis.asyncio.from_url("redis://localhost", retry_on_timeout=True),
    "cluster": lambda: redis.asyncio.RedisCluster("127.0.0.1"),
    "valkey on timeout": lambda: valkey.asyncio.Valkey(retry_on_timeout=True),
    "valkey cluster": lambda: valkey.asyncio.ValkeyCluster("127.0.0.1"),
}


@pytest.mark.parametrize("which", TRYING_AGAIN)
def test_a_client_that_tries_again_is_warned_of(which: str) -> None:
    client = TRYING_AGAIN[which]()
    with pytest.warns(RuntimeWarning, match=r"Retry\(NoBackoff\(\), 0\)") as found:
        RedisStore(client)
    assert found[0].filename == __file__


NO_CLIENTS: dict[str, Callable[[], Any]] = {
    "synchronous": lambda: redis.Redis(password=HARD),
    "synchronous valkey": lambda: valkey.Valkey(password=HARD),
    "a class": lambda: redis.asyncio.Redis,
    "a pool": lambda: redis.asyncio.ConnectionPool(password=HARD),
    "a pipeline": lambda: redis.asyncio.Redis(password=HARD).pipeline(),
    "a module": lambda: redis,
    "a number": lambda: 7,
    "None": lambda: None,
    "bytes": lambda: f"redis://:{QUOTED}@localhost".encode(),
}


@pytest.mark.parametrize("which", NO_CLIENTS)
def test_what_is_no_client(which: str) -> None:
    with pytest.raises(TypeError, match=r"redis\.asyncio or valkey\.asyncio") as error:
        RedisStore(NO_CLIENTS[which]())
    assert "s3cr3t" not in str(error.value)


# --- what is refused when it is made -----------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "user:s3cr3t@localhost:6379",
        ":s3cr3t@localhost",
        "s3cr3t",
        "http://localhost",
        "redis+http://localhost",
        "redis+cluster+sentinel://localhost/service",
        "unix+cluster:///path",
        "unix://",
        "unix://path/to/a/socket",
        "redis://:s3cr3t@host1,host2",
        "redis://:s3cr3t@host:port",
        "redis://:s3cr3t@host:70000",
        "redis://:s3cr3t@[::1",
        "redis://:s3cr3t\u2100@host",
        "redis://:s3cr/3t@host",
        "redis://:7/s3cr3t@host",
        "redis://:s3cr?3t@host",
        "redis://:7?s3cr3t@host",
        "redis://:s3cr#3t@host",
        "redis+cluster://:7/s3cr3t@host1,host2",
        "redis://:s3cr3t@host/database",
        "redis://:s3cr3t@host/0/1",
        "redis+cluster://:s3cr3t@host/1",
        "redis+cluster://:s3cr3t@host/service/0",
        "redis+sentinel://:s3cr3t@host",
        "redis+sentinel://:7/s3cr3t@host/service",
        "redis+sentinel://:s3cr3t@host/service/database",
        "redis+sentinel://:s3cr3t@host/service/0/1",
        "redis://:s3cr3t@host?no_such_option=1",
        "redis://:s3cr3t@host?socket_timeout=long",
        "rediss://:s3cr3t@host?ssl_cert_reqs=perhaps",
        "redis+cluster://:s3cr3t@host?no_such_option=1",
        "redis+cluster://:s3cr3t@host?socket_timeout=long",
        "redis+sentinel://:s3cr3t@host/service?no_such_option=1",
        "redis+sentinel://:s3cr3t@host/service?sentinel_no_such_option=1",
        "valkey+sentinel://:s3cr3t@host/service?socket_timeout=long",
        "valkey://:s3cr3t@host?no_such_option=1",
    ],
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis\+cluster://host1,host2") as error:
        RedisStore(url)
    assert "s3cr" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"prefix": "a{b"}, ValueError, "prefix must be text without braces, not 'a{b'"),
        ({"prefix": "}"}, ValueError, "prefix"),
        ({"prefix": None}, ValueError, "prefix"),
        ({"timeout": 0}, ValueError, "timeout must be seconds above 0 up to 60, not 0"),
        ({"timeout": 61}, ValueError, "timeout"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
        ({"timeout": None}, TypeError, "timeout"),
        ({"on_store_error": "x"}, ValueError, "'local', 'open', 'closed', 'raise', not 'x'"),
        ({"on_store_error": None}, ValueError, "on_store_error"),
        ({"processes": 0}, ValueError, "processes"),
        ({"processes": 1.5}, TypeError, "processes"),
        ({"lease": 0}, ValueError, "lease must be a share above 0 up to 1, or None, not 0"),
        ({"lease": 2}, ValueError, "lease"),
        ({"lease": "1"}, TypeError, "lease"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        RedisStore("redis://localhost", **options)


# --- one event loop after the other ------------------------------------------------------------

THREE_LOOPS = """
import asyncio, gc, logging, sys
from aiolimit import Limiter
from aiolimit.redis import RedisStore

logging.getLogger("asyncio").setLevel(logging.ERROR)  # not that a machine is slow
store = RedisStore(sys.argv[1], prefix="loops:", timeout=2)
limiter = Limiter("2/min", store=store)

async def main(number):
    for _ in range(2):
        permit = await limiter.acquire(f"key {number}", max_wait=0)
        assert permit.source == "store", permit.source
    assert not await limiter.try_acquire_async(f"key {number - 1}") or not number
    waiter = asyncio.create_task(limiter.acquire(f"key {number}").__aenter__())
    await asyncio.sleep(0.05)
    assert limiter.statistics().waiting == 1
    if number != 1:
        waiter.cancel()  # else the end of the loop does

for number in range(3):
    asyncio.run(main(number))
    gc.collect()
print("well")
"""


@pytest.mark.parametrize("kind", ["single", "valkey", "cluster", "valkey cluster", "sentinel"])
def test_three_loops_one_after_the_other(
    server: Engine, nodes: Sequence[Engine], kind: str
) -> None:
    """Nobody closes the store, and callers are cancelled while they wait."""
    with sentinel(server) if kind == "sentinel" else contextlib.nullcontext(server) as watch:
        url = {
            "single": server.url,
            "valkey": server.url.replace("redis", "valkey"),
            "cluster": cluster_url(nodes),
            "valkey cluster": cluster_url(nodes).replace("redis", "valkey"),
            "sentinel": f"redis+sentinel://{at(watch)}/mymaster",
        }[kind]
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", THREE_LOOPS, url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
    with server.client() as client:
        client.flushall()
    for node in nodes:
        with node.client() as client:
            client.flushall()
