"""A backend to try the gateway with: it answers every request with what it was asked.

python examples/backend.py --port 9000
"""

import argparse
import asyncio

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def answer(request: Request) -> JSONResponse:
    await asyncio.sleep(0.02)  # as if it had something to look up
    user = request.headers.get("x-user")
    return JSONResponse({"path": request.url.path, "method": request.method, "user": user})


methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
app = Starlette(routes=[Route("/{path:path}", answer, methods=methods)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9000, help="0 takes any free one")
    config = uvicorn.Config(app, port=parser.parse_args().port, log_level="warning")
    listening = config.bind_socket()
    listening.listen()  # from here on connections are kept until the server takes them
    print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
