"""Clients that keep to other people's limits: real ones, against real servers."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import aiohttp
import anyio
import httpx
import httpx2
import pytest

from aiolimit import Limiter, LoadController, RateLimited
from aiolimit.http import aiohttp_client
from aiolimit.http import httpx2 as with_httpx2
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.http.client import permits_of
from aiolimit.http.httpx import Charge, RateLimitTransport
from aiolimit.http.ledger import _ledgers
from tests.clients import CLIENTS, Server, client, server, with_each_client
from tests.dialects import CASES
from tests.serving import serving


@with_each_client
async def test_requests_leave_in_order_at_the_pace_of_the_limit(kind: str) -> None:
    limiter = Limiter("1/100ms", name="api")
    async with server() as there, client(kind, limiter) as ask:
        begun = time.monotonic()
        await asyncio.gather(*(ask(f"{there.address}/{number}") for number in range(6)))
        assert there.paths == [f"/{number}" for number in range(6)]
        # From our start, as how long each takes to arrive is the machine's business.
        for number, at in enumerate(there.times):
            assert at - begun > 0.1 * number - 1e-3
        assert there.times[-1] - begun < 1


@with_each_client
async def test_each_host_has_its_own_quota_or_whatever_the_key_tells(kind: str) -> None:
    limiter = Limiter("1/h")
    async with server() as there, client(kind, limiter, max_wait=0) as ask:
        port = there.address.rpartition(":")[2]
        await ask(there.address)
        await ask(f"http://localhost:{port}")
        with pytest.raises(RateLimited):
            await ask(there.address)
    async with (
        server() as there,
        client(kind, limiter, max_wait=0, key=lambda request: request.url.path) as ask,
    ):
        await ask(f"{there.address}/a")
        await ask(f"{there.address}/b")
        with pytest.raises(RateLimited) as caught:
            await ask(f"{there.address}/a")
        assert caught.value.key == "/a"
        assert len(there.times) == 2


@with_each_client
async def test_what_cannot_be_in_time_fails_at_once(kind: str) -> None:
    limiter = Limiter("1/h")
    async with server() as there, client(kind, limiter, timeout=5) as ask:
        await ask(there.address)
        for options in ({}, {"timeout": 2}):
            begun = time.monotonic()
            with pytest.raises(RateLimited) as caught:
                await ask(there.address, **options)
            assert time.monotonic() - begun < 1
            assert caught.value.retry_after == pytest.approx(3600, abs=10)
    # The bound of a single call, where the client has none.
    async with server() as there, client(kind, limiter, timeout=None) as ask:
        with pytest.raises(RateLimited):
            await ask(there.address, timeout=1)
        waiting = asyncio.create_task(ask(there.address))
        await asyncio.sleep(0.1)
        assert limiter.statistics().waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert limiter.statistics().waiting == 0
        assert there.times == []
    own = Limiter("1/h", max_wait=3)
    async with server() as there, client(kind, own, timeout=None) as ask:
        await ask(there.address)
        with pytest.raises(RateLimited):
            await ask(there.address)


@with_each_client
async def test_a_cost_is_charged_and_settled(kind: str) -> None:
    limiter = Limiter("100/h")
    charge = Charge(limiter, cost=lambda request: float(request.headers["cost"]), unit="tokens")
    async with server() as there, client(kind, charge, max_wait=0) as ask:
        key_free = Limiter("1/h")
        answer = await ask(there.address, headers={"cost": "80"})
        (permit,) = answer.permits
        assert permit.cost == 80
        permit.adjust(10)
        assert limiter.peek("127.0.0.1").remaining == 90
        await ask(there.address, headers={"cost": "90"})
        with pytest.raises(RateLimited):
            await ask(there.address, headers={"cost": "1"})
        assert permits_of(key_free) == ()


@with_each_client
async def test_after_a_refusal_all_wait_until_the_servers_time(kind: str) -> None:
    limiter = Limiter("100/s")
    async with (
        server((429, {"retry-after": "1"})) as there,
        client(kind, limiter) as ask,
        client(kind, limiter) as another,
    ):
        assert (await ask(there.address)).status == 429
        answers = await asyncio.gather(
            *(one(f"{there.address}/{n}") for n in range(5) for one in (ask, another))
        )
        assert {answer.status for answer in answers} == {200}
        assert 1.0 <= there.gaps[0] < 1.6
        # They leave one after the other, not all at the end of the pause.
        assert there.times[-1] - there.times[0] > 1.07


@with_each_client
async def test_a_refused_request_is_sent_again_if_asked_to(kind: str) -> None:
    refusals = [(429, {"retry-after": "0"}), (503, {"retry-after-ms": "10"})]
    async with (
        server(*refusals) as there,
        client(kind, Limiter("100/s"), retries=2) as ask,
    ):
        answer = await ask(there.address, method="POST", data=b"once more")
        assert answer.status == 200
        assert answer.body == there.body
        assert there.bodies == [b"once more"] * 3
        # Whatever it says, there is a pause of our own that grows.
        assert there.gaps[0] > 0.45
        assert there.gaps[1] > 0.95
        assert len(answer.permits) == 1


@with_each_client
async def test_retries_are_bounded_and_the_last_refusal_is_handed_on(kind: str) -> None:
    refusals = [(429, {"retry-after": "0", "x-number": str(number)}) for number in range(9)]
    limiter = Limiter("100/s")
    async with server(*refusals) as there, client(kind, limiter, retries=1) as ask:
        answer = await ask(there.address)
        assert (answer.status, answer.headers["x-number"]) == (429, "1")
        assert answer.body == there.body
        assert len(there.times) == 2


@with_each_client
async def test_a_limiter_in_shadow_leaves_a_server_alone_that_refuses_all_the_same(
    kind: str,
) -> None:
    limiter = Limiter("100/s", shadow=True)
    refusal = (429, {"retry-after": "1"})
    async with server(refusal, refusal) as there, client(kind, limiter, retries=2) as ask:
        begun = time.monotonic()
        assert (await ask(there.address)).status == 200
        assert len(there.times) == 3
        assert there.times[1] - begun > 1 - 1e-3
        assert there.times[2] - begun > 2 - 2e-3
        # Nobody else waits for it: only who was refused asks again.
        begun = time.monotonic()
        assert (await ask(there.address)).status == 200
        assert time.monotonic() - begun < 1


@with_each_client
async def test_who_gives_up_before_it_asks_again_in_shadow_keeps_no_connection(kind: str) -> None:
    limiter = Limiter("100/s", shadow=True)
    many = 20  # more than a client has connections
    async with (
        server(*[(429, {"retry-after": "30"})] * many) as there,
        client(kind, limiter, retries=1) as ask,
    ):
        asking = [asyncio.create_task(ask(there.address)) for _ in range(many)]
        async with asyncio.timeout(20):
            while len(there.times) < many:
                await asyncio.sleep(0.01)
            # While they wait to ask again others have the connections.
            assert (await ask(there.address)).status == 200
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            assert (await ask(there.address)).status == 200


@with_each_client
async def test_a_refusal_that_lasts_too_long_is_handed_on_and_the_rest_told_until_when(
    kind: str,
) -> None:
    async with (
        server((429, {"retry-after": "86400"})) as there,
        client(kind, Limiter("100/s"), retries=3, timeout=None) as ask,
    ):
        begun = time.monotonic()
        assert (await ask(there.address)).status == 429
        with pytest.raises(RateLimited) as caught:
            await ask(there.address)
        assert caught.value.retry_after == pytest.approx(86_400, abs=10)
        assert time.monotonic() - begun < 1
        assert len(there.times) == 1


@with_each_client
async def test_who_is_held_up_is_told_by_whom(kind: str) -> None:
    async with (
        server((429, {"retry-after": "60"})) as there,
        client(kind, Limiter("100/s"), timeout=5) as ask,
    ):
        await ask(there.address)
        with pytest.raises(RateLimited, match=r"would wait .*, longer than it may; a server has"):
            await ask(there.address)


@with_each_client
async def test_nobody_is_locked_out_for_longer_than_the_cap(kind: str) -> None:
    async with (
        server((429, {"retry-after": "86400"})) as there,
        client(kind, Limiter("100/s"), cap=0.3) as ask,
    ):
        assert (await ask(there.address)).status == 429
        await asyncio.sleep(0.4)
        assert (await ask(there.address)).status == 200


@with_each_client
async def test_a_wait_that_would_not_fit_is_not_begun(kind: str) -> None:
    async with (
        server((429, {"retry-after": "3"})) as there,
        client(kind, Limiter("100/s"), retries=3, timeout=1) as ask,
    ):
        begun = time.monotonic()
        answer = await ask(there.address)
        assert answer.status == 429
        assert answer.body == there.body
        assert time.monotonic() - begun < 1
        with pytest.raises(RateLimited) as caught:
            await ask(there.address)
        assert 2 < (caught.value.retry_after or 0) < 4


@with_each_client
async def test_refused_responses_are_closed(kind: str) -> None:
    """The pool has eight connections: more than that many refusals would use it up."""
    long = {"retry-after": "0", "content-length": "100000"}
    refusals = [(429, long) if number % 2 else (429, {"retry-after": "0"}) for number in range(24)]
    limiter = Limiter("1000/s")
    async with (
        server(*refusals, body=b"x" * 100_000) as there,
        client(kind, limiter, retries=3) as ask,
    ):
        for one in there.script:
            one[1].setdefault("content-length", "100000")
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(ask(there.address) for _ in range(24)))
        assert {answer.status for answer in answers} == {200}


@with_each_client
async def test_cancelled_while_it_waits_to_ask_again(kind: str) -> None:
    limiter = Limiter("100/s")
    async with (
        server(*[(429, {"retry-after": "30"})] * 12) as there,
        client(kind, limiter, retries=1) as ask,
    ):
        for _ in range(12):
            with anyio.move_on_after(0.15):
                await ask(there.address)
            limiter.reset()
        assert limiter.statistics().waiting == 0
        assert len(there.times) == 12
        async with asyncio.timeout(5):
            assert (await ask(there.address)).status == 200


@with_each_client
async def test_a_stream_that_is_used_up_is_not_sent_again(kind: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"only "
        yield b"once"

    async with (
        server((429, {"retry-after": "0"})) as there,
        client(kind, Limiter("100/s"), retries=3) as ask,
    ):
        answer = await ask(there.address, method="POST", data=parts())
        assert answer.status == 429
        assert there.bodies == [b"only once"]


@with_each_client
async def test_redirects_are_requests_too(kind: str) -> None:
    limiter = Limiter("100/s")

    def decide(there: Any, scope: Any) -> tuple[int, dict[str, str]]:
        return (302, {"location": "/end"}) if scope["path"] != "/end" else (200, {})

    async with server(decide=decide) as there, client(kind, limiter) as ask:
        assert (await ask(f"{there.address}/begin")).status == 200
        assert there.paths == ["/begin", "/end"]
    assert limiter.statistics().admitted == 2


@with_each_client
async def test_what_a_server_says_is_left_is_not_exceeded(kind: str) -> None:
    """Somebody else uses the quota too: we have less of it than we were told."""
    fields = {"ratelimit": '"api";r=3;t=1', "ratelimit-policy": '"api";q=100;w=60'}
    async with (
        server((200, fields)) as there,
        client(kind, limiter := Limiter("100/min")) as ask,
    ):
        await ask(there.address)
        assert limiter.peek("127.0.0.1").remaining == 3
        await asyncio.gather(*(ask(there.address) for _ in range(6)))
        assert there.times[3] - there.times[0] < 0.5
        assert there.times[4] - there.times[0] > 0.95


@with_each_client
async def test_what_a_server_says_never_raises_the_limit(kind: str) -> None:
    fields = {
        "x-ratelimit-limit": "9999",
        "x-ratelimit-remaining": "9999",
        "x-ratelimit-reset": "1",
    }
    async with (
        server(*[(200, fields)] * 9) as there,
        client(kind, Limiter("3/h"), max_wait=0) as ask,
    ):
        for _ in range(3):
            await ask(there.address)
        with pytest.raises(RateLimited):
            await ask(there.address)


@with_each_client
async def test_a_late_word_does_not_end_a_pause(kind: str) -> None:
    """A request that was sent before the refusal succeeds after it, and says all is well."""

    def decide(there: Any, scope: Any) -> tuple[int, dict[str, str]]:
        if scope["path"] == "/refused":
            return 429, {"retry-after": "2"}
        if scope["path"] == "/shorter":
            return 429, {"retry-after": "1"}
        return 200, {"ratelimit": '"api";r=99;t=60'}

    limiter = Limiter("100/s")
    async with server(decide=decide, delay=0.2) as there, client(kind, limiter) as ask:
        slow = [
            asyncio.create_task(ask(f"{there.address}{path}")) for path in ("/shorter", "/good")
        ]
        await asyncio.sleep(0)
        there.delay = 0.0
        assert (await ask(f"{there.address}/refused")).status == 429
        begun = time.monotonic()
        await asyncio.gather(*slow)
        await ask(f"{there.address}/next")
        assert time.monotonic() - begun > 1.6


@with_each_client
async def test_limits_in_disguise(kind: str) -> None:
    async def classify(response: Any, feedback: Any) -> float | bool | None:
        body = await (response.read() if kind == "aiohttp" else response.aread())
        if feedback.status == 200 and b"ratelimited" in body:
            return 0.7
        return False if feedback.status == 429 else None

    async with (
        server((200, {}), (429, {"retry-after": "30"})) as there,
        client(kind, Limiter("100/s"), classify=classify, retries=1) as ask,
    ):
        there.body = b'{"ok": false, "error": "ratelimited"}'
        asked = asyncio.create_task(ask(there.address))
        await asyncio.sleep(0.3)
        there.body = b'{"ok": true}'
        answer = await asked
        assert (answer.status, answer.body) == (429, b'{"ok": true}'), "by its word, no refusal"
        assert there.gaps[0] > 0.65
        assert (await ask(there.address)).status == 200


@with_each_client
async def test_a_classify_that_raises_leaves_nothing_open(kind: str) -> None:
    def classify(response: Any, feedback: Any) -> bool:
        raise LookupError("a mistake")

    limiter = Limiter("100/s")
    async with server() as there, client(kind, limiter, classify=classify) as ask:
        async with asyncio.timeout(10):
            for _ in range(20):
                with pytest.raises(LookupError, match="a mistake"):
                    await ask(there.address)
    assert not _ledgers.get(limiter)


@with_each_client
async def test_requests_and_tokens_are_charged_in_one_moment(kind: str) -> None:
    """A request that waits for tokens does not use up its place among the requests meanwhile."""
    requests, tokens = Limiter("3/500ms", name="requests"), Limiter("100/500ms", name="tokens")
    costs = {"/big": 90.0, "/small": 10.0}
    charge = Charge(tokens, cost=lambda request: costs[request.url.path], unit="tokens")
    async with server() as there, client(kind, requests, charge) as ask:
        paths = ["/big", "/big", "/small", "/small", "/small", "/small", "/big"]
        answers = await asyncio.gather(*(ask(f"{there.address}{path}") for path in paths))
        assert there.paths == paths, "in order"
        charged = [[permit._at or 0.0 for permit in answer.permits] for answer in answers]
        assert all(first == pytest.approx(second, abs=1e-3) for first, second in charged)
        for count, limit in ((lambda path: 1, 3), (lambda path: costs[path], 100)):
            for begin, _ in charged:
                inside = [
                    count(path)
                    for (at, _), path in zip(charged, paths, strict=True)
                    if begin <= at < begin + 0.5
                ]
                assert sum(inside) <= limit
        assert [permit.cost for permit in answers[0].permits] == [1, 90]


@with_each_client
async def test_cancelled_while_it_waits_for_tokens_the_request_is_given_back(kind: str) -> None:
    requests, tokens = Limiter("10/h"), Limiter("100/h")
    async with (
        server() as there,
        client(kind, requests, Charge(tokens, cost=60, unit="tokens"), timeout=None) as ask,
    ):
        await ask(there.address)
        for _ in range(3):
            with anyio.move_on_after(0.1):
                await ask(there.address)
        assert requests.peek("127.0.0.1").remaining == 9
        assert tokens.peek("127.0.0.1").remaining == 40
        assert requests.statistics().waiting == tokens.statistics().waiting == 0
        assert len(there.times) == 1


@with_each_client
async def test_counters_restrict_what_they_count(kind: str) -> None:
    fields = {
        "x-ratelimit-remaining-requests": "7",
        "x-ratelimit-reset-requests": "6m0s",
        "x-ratelimit-remaining-tokens": "5",
        "x-ratelimit-reset-tokens": "6m0s",
        "x-ratelimit-remaining-audio-points": "2",
        "x-ratelimit-reset-audio-points": "6m0s",
    }
    requests, tokens = Limiter("100/min"), Limiter("100/min")
    async with (
        server((200, fields)) as there,
        client(kind, requests, Charge(tokens, unit="tokens")) as ask,
    ):
        await ask(there.address)
    assert requests.peek("127.0.0.1").remaining == 7
    assert tokens.peek("127.0.0.1").remaining == 5


DIALECTS = [case for case in CASES if case.status == 429 and case.retry_after]


@with_each_client
async def test_each_dialect_is_obeyed(kind: str) -> None:
    """Each documented refusal holds its key for as long as it says."""
    limiter = Limiter("1000/s")
    scripts = []
    for case in DIALECTS:
        headers = dict(case.headers)
        if not any(name.lower() == "date" for name in headers) and case.now is not None:
            headers["date"] = format_datetime(datetime.fromtimestamp(case.now, UTC), usegmt=True)
        scripts.append((429, headers))
    assert len(scripts) > 30
    async with (
        server(*scripts) as there,
        client(kind, limiter, key=lambda request: request.url.path) as ask,
    ):
        there.body = b""
        for number, case in enumerate(DIALECTS):
            answer = await ask(f"{there.address}/{number}")
            assert answer.status == 429
            held = limiter.peek(f"/{number}").retry_after
            assert held is not None
            least = max(case.retry_after or 0, 0.5)
            assert least - 3 <= held <= least * 1.1 + 0.01, case.vendor


@with_each_client
async def test_a_server_that_drops_the_connection(kind: str) -> None:
    limiter = Limiter("1000/s")
    answered = 0

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await reader.readuntil(b"\r\n\r\n")
        answered += 1
        if answered % 2:
            writer.write(
                b"HTTP/1.1 429 Too Many\r\nretry-after: 0\r\ncontent-length: 50\r\n\r\nhalf"
            )
        writer.close()

    listening = await asyncio.start_server(drop, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with client(kind, limiter, retries=2) as ask:
        for _ in range(4):
            with pytest.raises((aiohttp.ClientError, httpx.HTTPError, httpx2.HTTPError)):
                await ask(f"http://127.0.0.1:{port}/")
    listening.close()
    await listening.wait_closed()
    ledger = _ledgers.get(limiter, {}).get("127.0.0.1")
    assert ledger is None or ledger.in_flight == 0
    assert limiter.statistics().waiting == 0


@with_each_client
async def test_keep_alive_goes_on(kind: str) -> None:
    async with server((429, {"retry-after": "0"})) as there:
        ports: set[int] = set()
        plain = there.decide

        def decide(made: Any, scope: Any) -> tuple[int, dict[str, str]]:
            ports.add(scope["client"][1])
            number = len(made.times) - 1
            return made.script[number] if number < len(made.script) else (200, {})

        assert plain is None
        there.decide = decide
        async with client(kind, Limiter("100/s"), retries=1) as ask:
            for _ in range(5):
                assert (await ask(there.address)).status == 200
        assert len(ports) == 1


@with_each_client
async def test_a_body_that_is_still_to_be_read_stays_open(kind: str) -> None:
    limiter = Limiter("100/s")
    async with server(body=b"y" * 1_000_000) as there:
        if kind == "aiohttp":
            middleware = aiohttp_client.RateLimitMiddleware(limiter)
            async with (
                aiohttp.ClientSession(middlewares=(middleware,)) as session,
                session.get(there.address) as answer,
            ):
                size = sum([len(part) async for part in answer.content.iter_chunked(5000)])
        else:
            room = with_httpx2.RateLimitTransport if kind == "httpx2" else RateLimitTransport
            lib: Any = httpx2 if kind == "httpx2" else httpx
            async with (
                lib.AsyncClient(transport=room(limiter)) as session,
                session.stream("GET", there.address) as answer,
            ):
                size = sum([len(part) async for part in answer.aiter_bytes()])
        assert size == 1_000_000


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("limits", "options", "says"),
    [
        ((), {}, "at least one Limiter"),
        (("4/s",), {}, "limiter must be a Limiter, not '4/s'"),
        ((Limiter("1/s"),), {"key": "host"}, "key must be a function"),
        ((Limiter("1/s"),), {"retries": -1}, "retries must be 0 or more"),
        ((Limiter("1/s"),), {"retries": None}, "retries"),
        ((Limiter("1/s"),), {"max_wait": -1}, "max_wait"),
        ((Limiter("1/s"),), {"cap": float("nan")}, "cap must be a finite number"),
        ((Limiter("1/s"),), {"classify": 5}, "classify must be a function"),
    ],
)
async def test_bad_options(
    kind: str, limits: tuple[Any, ...], options: dict[str, Any], says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        async with client(kind, *limits, **options):
            pass


def test_bad_charges() -> None:
    for arguments in ({"cost": -1}, {"cost": "1"}, {"unit": ""}, {"limiter": "1/s"}):
        with pytest.raises((TypeError, ValueError)):
            Charge(**{"limiter": Limiter("1/s"), **arguments})  # type: ignore[arg-type]


# Found by looking for trouble ---------------------------------------------------------------------


@with_each_client
async def test_a_refusal_lets_nobody_else_go_first(kind: str) -> None:
    """Its cost is given back, and what is left is said, only after the key is held."""
    limiter, tokens = Limiter("1/10s"), Limiter("100/10s")
    refused = {"retry-after": "2", "ratelimit": '"api";r=5;t=9'}
    async with (
        server((200, {"ratelimit": '"api";r=1;t=9'}), (429, refused), delay=0.1) as there,
        client(kind, Limiter("100/s"), Charge(tokens, cost=50, unit="tokens")) as ask,
        client(kind, limiter) as plain,
    ):
        asked = [asyncio.create_task(ask(there.address)) for _ in range(6)]
        await asyncio.sleep(1)
        assert len(there.times) == 2
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        limiter.reset()
        there.script = [*there.script, (429, {"retry-after": "2"})]
        asked = [asyncio.create_task(plain(there.address)) for _ in range(3)]
        await asyncio.sleep(0.6)
        assert len(there.times) == 3
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


@with_each_client
async def test_more_is_not_sent_than_is_left_when_answers_overtake_each_other(kind: str) -> None:
    """The first that is sent is counted last, and its answer is the newest."""
    quota = 12

    def decide(there: Any, scope: Any) -> tuple[int, dict[str, str]]:
        left = quota - len(there.times)
        status = 200 if left >= 0 else 429
        return status, {"ratelimit": f'"api";r={max(0, left)};t=60'}

    limiter = Limiter("100/min")
    order = asyncio.Event()

    class Late:
        def __init__(self, app: Any) -> None:
            self.app, self.came = app, 0

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.came += 1
            if self.came == 1:
                await order.wait()
            await self.app(scope, receive, send)

    made = Server(decide=decide)
    async with (
        serving(Late(made), lifespan="off", date_header=False) as host,
        client(kind, limiter) as ask,
    ):
        asked = [asyncio.create_task(ask(f"http://{host}/")) for _ in range(6)]
        await asyncio.sleep(0.3)
        order.set()
        await asyncio.gather(*asked)
        more = [asyncio.create_task(ask(f"http://{host}/")) for _ in range(20)]
        await asyncio.sleep(0.5)
        assert len(made.times) == quota
        assert 429 not in made.statuses
        for task in more:
            task.cancel()
        await asyncio.gather(*more, return_exceptions=True)


@with_each_client
async def test_many_clients_on_the_same_two_limiters(kind: str) -> None:
    """None starves, none spins, and plain callers of the limiters have their turn, too."""
    one, other = Limiter("1/50ms"), Limiter("1/50ms")
    passed = 0

    async def plain(limiter: Limiter) -> None:
        nonlocal passed
        while True:
            await limiter.acquire("127.0.0.1")
            passed += 1

    async with (
        server() as there,
        client(kind, one, Charge(other, unit="tokens")) as first,
        client(kind, other, Charge(one, unit="tokens")) as second,
        client(kind, one, Charge(other, unit="tokens")) as third,
    ):
        others = [asyncio.create_task(plain(limiter)) for limiter in (one, other)]
        cpu = time.process_time()
        async with asyncio.timeout(20):
            await asyncio.gather(
                *(ask(there.address) for ask in (first, second, third) for _ in range(6))
            )
        assert time.process_time() - cpu < 5
        assert passed >= 2
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    assert sum(one.statistics().rejected.values()) == 0


@with_each_client
async def test_behind_one_who_waits_for_ever_another_fails_at_once(kind: str) -> None:
    one, other = Limiter("100/s"), Limiter("1/h")
    async with (
        server() as there,
        client(kind, one, Charge(other, unit="tokens"), timeout=None) as ask,
    ):
        await ask(there.address)
        patient = asyncio.create_task(ask(there.address))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        with pytest.raises(RateLimited):
            await ask(there.address, timeout=1)
        assert time.monotonic() - begun < 0.5
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)
        assert one.statistics().waiting == other.statistics().waiting == 0


async def bad_server(
    said: bytes, *, closes: bool = False
) -> tuple[asyncio.Server, str, list[float]]:
    """Says the same to the first who asks, and then nothing more; to all others it is good."""
    times: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                times.append(time.monotonic())
                good = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood"
                writer.write(said if len(times) == 1 else good)
                await writer.drain()
                if closes and len(times) == 1:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    return listening, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/", times


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 100\r\n\r\nhalf",
        b"content-length: 4\r\ncontent-encoding: gzip\r\n\r\nlate",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_refusal_whose_body_stalls_or_is_broken(kind: str, body: bytes) -> None:
    said = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\n" + body
    listening, address, _ = await bad_server(said)
    async with client(kind, Limiter("100/s"), retries=1) as ask:
        async with asyncio.timeout(4):
            answer = await ask(address)
        assert (answer.status, answer.body) == (200, b"good")
    listening.close()


@with_each_client
async def test_what_never_left_costs_nothing(kind: str) -> None:
    limiter = Limiter("3/h")
    async with client(kind, limiter) as ask:
        for _ in range(5):
            with pytest.raises((aiohttp.ClientError, httpx.HTTPError, httpx2.HTTPError)):
                await ask("http://127.0.0.1:9/")
    assert limiter.peek("127.0.0.1").remaining == 3


@with_each_client
async def test_what_costs_nothing_leaves_a_server_alone_too(kind: str) -> None:
    async with (
        server((429, {"retry-after": "1"})) as there,
        client(kind, Charge(Limiter("10/s"), cost=0)) as ask,
    ):
        await ask(there.address)
        await asyncio.gather(*(ask(there.address) for _ in range(3)))
        assert there.gaps[0] >= 1
        with pytest.raises(RateLimited):
            there.script = [(429, {"retry-after": "30"})] * 9
            await ask(there.address)
            await ask(there.address, timeout=1)


@with_each_client
async def test_nothing_is_kept_of_keys_that_were_refused(kind: str) -> None:
    limiter = Limiter("1000/s")
    async with (
        server(*[(429, {"retry-after": "0"})] * 20) as there,
        client(kind, limiter, cap=0.2, key=lambda request: request.url.path) as ask,
    ):
        await asyncio.gather(*(ask(f"{there.address}/{number}") for number in range(20)))
        assert _ledgers[limiter]
        await asyncio.sleep(1)
        assert not _ledgers[limiter]


@with_each_client
async def test_a_reset_lifts_what_a_server_has_said(kind: str) -> None:
    limiter = Limiter("100/s")
    async with (
        server((429, {"retry-after": "86400"})) as there,
        client(kind, limiter) as ask,
    ):
        await ask(there.address)
        with pytest.raises(RateLimited):
            await ask(there.address)
        limiter.reset("127.0.0.1")
        assert (await ask(there.address)).status == 200


@with_each_client
async def test_a_wait_of_just_the_cap_is_obeyed(kind: str) -> None:
    async with (
        server((429, {"retry-after": "1"})) as there,
        client(kind, Limiter("100/s"), cap=1, retries=1) as ask,
    ):
        assert (await ask(there.address)).status == 200
        assert there.gaps[0] >= 0.99


@with_each_client
async def test_permits_of_whatever_is_handed_on(kind: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"once"

    async with (
        server(*[(429, {"retry-after": "0"})] * 9) as there,
        client(kind, Limiter("100/s"), retries=1) as ask,
    ):
        assert len((await ask(there.address, method="POST", data=parts())).permits) == 1
        assert len((await ask(there.address)).permits) == 1


@with_each_client
async def test_a_limiter_cannot_be_given_twice(kind: str) -> None:
    limiter = Limiter("1/s")
    with pytest.raises(ValueError, match="each limiter once"):
        async with client(kind, limiter, Charge(limiter, unit="tokens")):
            pass
    with pytest.raises(ValueError, match="load controller"):
        async with client(kind, Limiter("1/s", load=LoadController()), Limiter("1/s")):
            pass


@pytest.mark.parametrize("kind", ["httpx", "httpx2"])
@pytest.mark.parametrize("reads", ["all", "part", "nothing"])
async def test_a_response_that_classify_has_read_is_as_new(kind: str, reads: str) -> None:
    seen: list[Any] = []

    async def classify(response: Any, feedback: Any) -> None:
        seen.append(response.request.url)
        if reads == "all":
            await response.aread()
            response.raise_for_status()
        elif reads == "part":
            async for _ in response.aiter_raw():
                break

    lib: Any = {"httpx": httpx, "httpx2": httpx2}[kind]
    room = {"httpx": RateLimitTransport, "httpx2": with_httpx2.RateLimitTransport}[kind]
    body = bytes(range(256)) * 2000
    async with (
        server(body=body) as there,
        lib.AsyncClient(transport=room(Limiter("100/s"), classify=classify)) as session,
    ):
        answer = await session.get(there.address)
        assert answer.content == body
        assert answer.elapsed.total_seconds() > 0
        async with session.stream("GET", there.address) as answer:
            assert b"".join([part async for part in answer.aiter_raw()]) == body
    assert len(seen) == 2


@with_each_client
async def test_forms_with_files_are_sent_again(kind: str) -> None:
    options: dict[str, Any] = {"files": {"f": b"abc"}}
    if kind == "aiohttp":
        form = aiohttp.FormData()
        form.add_field("f", b"abc", filename="f")
        options = {"data": form}
    async with (
        server((429, {"retry-after": "0"})) as there,
        client(kind, Limiter("100/s"), retries=1) as ask,
    ):
        assert (await ask(there.address, method="POST", **options)).status == 200
        assert there.bodies[0] == there.bodies[1]
        assert b"abc" in there.bodies[1]


async def test_aiohttp_that_waits_for_leave_to_send_is_not_sent_again() -> None:
    async with (
        server((429, {"retry-after": "0"})) as there,
        client("aiohttp", Limiter("100/s"), retries=1) as ask,
    ):
        answer = await ask(there.address, method="POST", data=b"x" * 1000, expect100=True)
        assert answer.status == 429


async def test_a_transport_is_entered_and_left_with_its_client() -> None:
    said: list[str] = []

    class Inner(httpx2.AsyncHTTPTransport):
        async def __aenter__(self) -> "Inner":
            said.append("entered")
            await super().__aenter__()
            return self

        async def __aexit__(self, *raised: object) -> None:
            said.append("left")
            await super().__aexit__()

    transport = with_httpx2.RateLimitTransport(Limiter("1/s"), transport=Inner())
    async with httpx2.AsyncClient(transport=transport):
        pass
    assert said == ["entered", "left"]


async def test_own_service_and_own_client_with_the_same_limit() -> None:
    """A server's times are whole seconds; one who is alone with it need not wait for them."""

    async def works(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = RateLimitMiddleware(works, Limiter("20/s"))
    limiter = Limiter("20/1200ms")  # so much longer that a request may be a fifth of a second late
    async with serving(app, lifespan="off") as host, client("httpx2", limiter) as ask:
        begun = time.monotonic()
        answers = await asyncio.gather(*(ask(f"http://{host}/") for _ in range(60)))
        seconds = time.monotonic() - begun
    assert {answer.status for answer in answers} == {204}
    assert seconds < 3.4, "of 2.4: not a second more for each window"


async def test_what_is_on_its_way_is_counted_in() -> None:
    """The server has twenty left and answers late; our own limiter has little left itself."""
    left = 20

    def decide(there: Any, scope: Any) -> tuple[int, dict[str, str]]:
        now = left - len(there.times)
        policy = {"ratelimit-policy": '"api";q=100;w=60'}
        return 200 if now >= 0 else 429, {"ratelimit": f'"api";r={max(0, now)};t=60', **policy}

    async with (
        server(decide=decide, delay=0.5) as there,
        client("httpx2", Limiter("20/s", burst=1)) as ask,
    ):
        asked = [asyncio.create_task(ask(there.address)) for _ in range(40)]
        await asyncio.sleep(2.5)
        assert there.statuses.count(429) == 0
        assert len(there.times) <= left
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_what_a_user_has_restricted_stays() -> None:
    limiter = Limiter("100/min")
    fields = {"x-ratelimit-remaining": "4999", "x-ratelimit-reset": "60"}
    async with (
        server(*[(200, fields)] * 9) as there,
        client("httpx2", limiter, max_wait=0) as ask,
    ):
        limiter.restrict("127.0.0.1", remaining=3, seconds=60)
        for _ in range(3):
            await ask(there.address)
        with pytest.raises(RateLimited):
            await ask(there.address)


@pytest.mark.parametrize("kind", ["httpx", "httpx2"])
@pytest.mark.parametrize("how", ["it breaks off", "it is stopped"])
async def test_a_body_that_classify_could_not_read_is_no_whole_one(kind: str, how: str) -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    listening, address, _ = await bad_server(said, closes=how == "it breaks off")

    async def classify(response: Any, feedback: Any) -> None:
        with contextlib.suppress(httpx.HTTPError, httpx2.HTTPError, TimeoutError):
            async with asyncio.timeout(0.2):
                await response.aread()

    async with client(kind, Limiter("100/s"), classify=classify) as ask:
        with pytest.raises(
            (
                httpx.ReadError,
                httpx2.ReadError,
                httpx.RemoteProtocolError,
                httpx2.RemoteProtocolError,
            )
        ):
            await ask(address)
    listening.close()
