"""The live page as an ASGI application: one page that asks for its numbers once a second.

It asks, rather than being told: an open stream would keep a server from shutting down, and a page
that nobody looks at would cost something. While nobody looks, this costs nothing.
"""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, quote

from aiolimit.arguments import check_name
from aiolimit.dashboard.state import catalogue, state
from aiolimit.http.asgi_types import Receive, Scope, Send
from aiolimit.limiter import Limiter
from aiolimit.watch.roster import Roster

__all__ = ["Dashboard", "page", "policy"]

_Headers = list[tuple[bytes, bytes]]
_HTML: Final = (b"content-type", b"text/html; charset=utf-8")
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class Dashboard:
    """A page that draws live what limiters admit and refuse, and why.

    limiters: what to show, with the load controllers they have.
    title: what the service is called, for who has several of these pages open.
    show_keys: whether the page may name a key of its own choice, to explain how it stands; a key
        that is typed in is explained anyway. Keys may be secrets, so it is off by default.

    Mount it where only operators get in: whoever sees the page sees the names of limiters, their
    limits and what they count. It changes nothing. Each process tells of itself; where several
    answer, the page keeps them apart.

    Raises `TypeError` for what is no `Limiter`, or for none, and for other wrong options.
    """

    def __init__(
        self, *limiters: Limiter, title: str = "aiolimit", show_keys: bool = False
    ) -> None:
        if not limiters:
            raise TypeError("Dashboard needs at least one limiter to show")
        for limiter in limiters:
            if not isinstance(limiter, Limiter):
                raise TypeError(f"Dashboard takes limiters, not {limiter!r}")
        if not isinstance(show_keys, bool):
            raise TypeError(f"show_keys must be True or False, not {show_keys!r}")
        self._limiters = limiters  # which the roster does not keep
        self._title = check_name(title, "title")
        self._show_keys = show_keys
        self._roster = Roster(self)
        self._roster.add(limiters)

    def state(self, key: str | None = None) -> dict[str, Any]:
        """All that the page shows, as it is now.

        key: whose explanation to tell.
        """
        return state(self._roster, self._title, key, show_keys=self._show_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the page, or for its numbers."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000, "reason": ""})
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        query = scope.get("query_string", b"")
        status, headers, body = 200, [_HTML, (b"content-security-policy", policy())], page()
        if scope["method"] not in ("GET", "HEAD"):
            status, headers, body = 405, [_TEXT, (b"allow", b"GET, HEAD")], b"only GET and HEAD"
        elif not path:
            # Or the page would ask for its numbers one level too high.
            last = quote(scope["path"].rpartition("/")[2], safe="")
            where = f"./{last}/".encode() + (b"?" + query if query else b"")
            status, headers, body = 307, [_TEXT, (b"location", where)], b""
        elif path == "/state":
            asked = parse_qs(query.decode("utf-8", "replace"), keep_blank_values=True).get("key")
            body = json.dumps(self.state(asked[-1] if asked else None), allow_nan=False).encode()
            headers = [_JSON]
            if scope.get("http_version", "1.1").startswith("1."):
                # So that each question may come to another worker, and all of them are seen.
                headers.append((b"connection", b"close"))
        elif path != "/":
            status, headers, body = 404, [_TEXT], b"there is / and /state"
        await send(
            {"type": "http.response.start", "status": status, "headers": _whole(headers, body)}
        )
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )


def _whole(headers: _Headers, body: bytes) -> _Headers:
    return [
        *headers,
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]


async def _live(receive: Receive, send: Send) -> None:
    """Nothing to start and nothing to stop, for who serves the page by itself."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


@cache
def page() -> bytes:
    """The whole page. All that it needs is in it, and it asks for nothing from elsewhere."""
    html = _file("page.html")
    for place, content in (
        ("/* styles */", _file("uplot/uPlot.min.css") + _file("page.css")),
        ("/* script */", _script()),
    ):
        html = html.replace(place, content)
    return html.encode()


@cache
def policy() -> bytes:
    """The policy that holds the page to its promise: only its own script, only its own server."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ).encode()


@cache
def _script() -> str:
    told = f"const CATALOGUE = {json.dumps(catalogue())};\n"
    return _file("uplot/uPlot.iife.min.js") + told + _file("page.js")


def _file(name: str) -> str:
    return files("aiolimit.dashboard").joinpath(name).read_text(encoding="utf-8")
