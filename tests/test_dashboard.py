"""The live page in a real browser: it draws what happens, and its numbers are the limiter's own."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, Page, async_playwright
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from aiolimit import Limiter, LoadController, WarmUp
from aiolimit.dashboard import Dashboard
from aiolimit.testing import FakeClock
from tests.programs import chromium
from tests.serving import serving
from tests.support import StoppingClock

_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=_QUIET)
        try:
            yield started
        finally:
            await started.close()


class Watched:
    """A page that is open, and all that it did wrong."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    async def tile(self, name: str) -> float:
        return float(await self.page.get_attribute(f"#tile-{name}", "data-value") or "nan")

    async def line(self, chart: str, label: str) -> float | None:
        """The newest value of a line of a chart."""
        where = f'#chart-{chart} .legend li[data-line="{label}"]'
        text = await self.page.get_attribute(where, "data-value")
        return float(text) if text else None

    async def until(self, script: str) -> None:
        """Wait until that is so on the page."""
        # Playwright's own way has the page evaluate text, which its policy does not let it do.
        async with asyncio.timeout(20):
            while not await self.page.evaluate(script):
                await asyncio.sleep(0.05)

    async def polls(self, count: int) -> None:
        """Wait until the page has asked so many times more."""
        for _ in range(count):
            async with self.page.expect_response(lambda response: "/state" in response.url):
                pass


@contextlib.asynccontextmanager
async def opened(address: str, **options: Any) -> AsyncIterator[Watched]:
    async with browser() as started:
        context = await started.new_context(viewport={"width": 1360, "height": 2600}, **options)
        watched = Watched(await context.new_page())
        await watched.page.goto(address)
        await watched.until("document.getElementById('connection').dataset.state === 'live'")
        yield watched


async def traffic(limiter: Limiter, gap: float, **options: Any) -> None:
    """Calls that come evenly, until cancelled."""
    tasks: set[asyncio.Task[None]] = set()

    async def call() -> None:
        with contextlib.suppress(Exception):
            async with limiter.acquire("somebody", **options):
                await asyncio.sleep(0.02)

    while True:
        task = asyncio.create_task(call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(gap)


@contextlib.asynccontextmanager
async def flowing(*streams: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(stream) for stream in streams]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_page_draws_what_happens_and_asks_nobody_else() -> None:
    controller = LoadController()
    search = Limiter(
        *("30/s", "1000/min"),
        name="search",
        load=controller,
        warm_up=WarmUp(start=0.5, over=3),
        max_wait=0,
    )
    pace = Limiter("10/s", name="pace", max_waiters=5)
    trial = Limiter("5/s", name="trial", shadow=True, max_wait=0)
    page = Dashboard(search, pace, trial, title="the service")
    async with controller, serving(page) as address, opened(f"http://{address}/") as watched:
        at = watched.page
        streams = (traffic(search, 0.01), traffic(pace, 0.025), traffic(trial, 0.05))
        async with flowing(*streams):
            await watched.polls(3)
            canvas = at.locator("#chart-admitted canvas").first
            before = await canvas.evaluate("it => it.toDataURL()")
            admitted = await watched.tile("admitted")
            await watched.polls(3)
            assert await canvas.evaluate("it => it.toDataURL()") != before, "the pictures move"
            assert await watched.tile("admitted") > admitted
            assert 0 < (await watched.line("admitted", "admitted") or 0) < 60
            assert (await watched.line("rejected", "quota") or 0) > 0
            assert (await watched.line("limit", "warm") or 0) > 0.5
            assert await watched.line("flight", "in flight") is not None
            assert await watched.line("pressure", "memory") is not None
            assert await at.title() == "the service"
            shades = "new Set(it.getContext('2d').getImageData(0, 0, it.width, it.height).data)"
            for plot in await at.locator(".plot canvas").all():
                assert await plot.evaluate(f"it => {shades}.size > 10"), "a picture is empty"

            await at.get_by_role("tab", name="pace").click()
            await watched.polls(3)
            assert await watched.line("waiting", "waiting") == 5
            assert (await watched.line("waits", "p99") or 0) > 0.25
            assert (await watched.line("rejected", "queue full") or 0) > 0
            assert await at.locator("#chart-load").count() == 0, "it has no load controller"

            await at.get_by_role("tab", name="trial").click()
            await watched.polls(2)
            assert "in shadow: it refuses nobody" in await at.inner_text("#explanation")
            assert (await watched.line("rejected", "quota") or 0) > 0
            assert "would be rejected" in await at.inner_text("#tiles")
        assert watched.complaints == []
        assert {url.split("?")[0] for url in watched.asked} <= {
            f"http://{address}/",
            f"http://{address}/state",
        }


async def test_its_numbers_are_those_of_statistics() -> None:
    limiter = Limiter("10/s", name="search", max_wait=0, burst=8)
    async with serving(Dashboard(limiter)) as address:
        for number in range(25):
            limiter.try_acquire(f"user:{number % 2}", cost=2)
        held = limiter.acquire("somebody")
        async with held, opened(f"http://{address}/") as watched:
            before = limiter.statistics()
            for number in range(40):
                limiter.try_acquire(f"user:{number % 3}", cost=2)
            await watched.polls(2)
            statistics = limiter.statistics()
            assert await watched.tile("admitted") == statistics.admitted
            assert await watched.tile("rejected") == sum(statistics.rejected.values()) > 0
            assert await watched.tile("waiting") == statistics.waiting
            assert await watched.tile("in_flight") == statistics.in_flight == 1
            assert await watched.tile("keys") == statistics.keys
            assert await watched.tile("limit") == 10
            refused = statistics.rejected["quota"]
            since = refused - before.rejected["quota"]
            share = since / (since + statistics.admitted - before.admitted)
            assert await watched.tile("share") == pytest.approx(share)
            assert await watched.page.inner_text("#explanation") == str(limiter.explain())
            await watched.page.click("summary")
            await watched.until("document.querySelector('#numbers tbody').children.length > 0")
            table = await watched.page.inner_text("#numbers table")
            for text, value in (
                ("aiolimit_rejected_total quota", refused),
                ("aiolimit_cost_admitted_total", statistics.cost_admitted),
                ("aiolimit_near_limit_total", statistics.near_limit),
                ("aiolimit_limit_configured s", 10),
            ):
                assert re.search(rf"^{text}\t{value:g}\t\w", table, re.MULTILINE), (text, table)
            assert watched.complaints == []


async def test_a_key_that_is_typed_in_is_explained() -> None:
    limiter = Limiter("3/h", name="search")
    async with serving(Dashboard(limiter)) as address, opened(f"http://{address}/") as watched:
        for _ in range(3):
            limiter.try_acquire('o\'brien & "co" <b>')
        await watched.page.fill("#key", 'o\'brien & "co" <b>')
        await watched.page.press("#key", "Enter")
        await watched.until("document.getElementById('explanation').innerText.includes('0 of 3')")
        text = await watched.page.inner_text("#explanation")
        assert "for 'o\\'brien & \"co\" <b>', so a new call passes in" in text
        assert watched.complaints == []


async def test_everything_can_be_reached_by_keyboard() -> None:
    limiters = [Limiter("10/s", name=name) for name in ("one", "two", "three")]
    async with serving(Dashboard(*limiters)) as address, opened(f"http://{address}/") as watched:
        at = watched.page
        await watched.polls(4)
        seen = []
        for _ in range(30):
            await at.keyboard.press("Tab")
            seen.append(
                await at.evaluate(
                    "(it => it.id || it.name || it.closest('article')?.id || it.innerText)"
                    "(document.activeElement)"
                )
            )
        for one in ("span", "pause", "theme", "one", "key", "chart-rejected", "chart-keys"):
            assert one in seen, seen
        await at.get_by_role("tab", name="one").focus()
        await at.keyboard.press("ArrowRight")
        await watched.polls(1)
        assert await at.evaluate("document.activeElement.innerText") == "two"
        assert await at.inner_text("#explanation") == str(limiters[1].explain())
        await at.keyboard.press("End")
        assert await at.inner_text('[role="tab"][aria-selected="true"]') == "three"

        await at.locator("#chart-keys .plot").focus()
        told = await at.get_attribute("#chart-keys .plot", "aria-label")
        assert told is not None
        assert re.match(r"Keys, \d\d:\d\d:\d\d: keys 0, held back 0$", told)
        await at.keyboard.press("ArrowLeft")
        await at.keyboard.press("ArrowLeft")
        walked = await at.get_attribute("#chart-keys .plot", "aria-label")
        assert walked is not None
        assert walked < told, "an earlier second is told"

        await at.focus("#pause")
        await at.keyboard.press("Enter")
        await watched.until("document.getElementById('connection').innerText === 'paused'")
        await at.keyboard.press("Enter")
        await watched.until("document.getElementById('connection').innerText === 'live'")
        assert watched.complaints == []


#: Contrast as WCAG 2.2 defines it, of a colour of the page against another.
CONTRAST = """([one, other]) => {
  const luminance = (name) => {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_it_can_be_read_in_dark_and_in_light(scheme: str) -> None:
    limiter = Limiter("10/s", name="search")
    async with (
        serving(Dashboard(limiter)) as address,
        opened(f"http://{address}/", color_scheme=scheme) as watched,
    ):
        at = watched.page
        assert await at.get_attribute("html", "data-theme") == scheme
        for ink in ("--text", "--muted"):
            for ground in ("--ground", "--panel", "--raised"):
                assert await at.evaluate(CONTRAST, [ink, ground]) >= 4.5, (ink, ground)
        for line in ("red", "orange", "amber", "violet", "pink", "green", "blue", "teal", "grey"):
            assert await at.evaluate(CONTRAST, [f"--{line}", "--panel"]) >= 3, line
        await at.click("#theme")
        other = {"dark": "light", "light": "dark"}[scheme]
        assert await at.get_attribute("html", "data-theme") == other
        assert watched.complaints == []


async def test_it_says_when_it_has_lost_the_connection_and_goes_on_when_it_is_back() -> None:
    limiter = Limiter("10/s", name="search")
    page = Dashboard(limiter)
    is_broken = False

    async def sometimes(scope: Any, receive: Any, send: Any) -> None:
        if is_broken and scope["path"].endswith("/state"):
            await PlainTextResponse("no", 500)(scope, receive, send)
        else:
            await page(scope, receive, send)

    async with serving(sometimes) as address, opened(f"http://{address}/") as watched:
        is_broken = True
        lost = "document.getElementById('connection').dataset.state === 'lost'"
        await watched.until(lost)
        said = await watched.page.inner_text("#connection")
        assert re.fullmatch(r"answered with 500 for \d+ s, trying again", said)
        assert await watched.page.evaluate("document.body.hasAttribute('data-stale')")
        is_broken = False
        limiter.try_acquire()
        await watched.until("document.getElementById('connection').dataset.state === 'live'")
        assert await watched.tile("admitted") == 1
        assert not await watched.page.evaluate("document.body.hasAttribute('data-stale')")
        await watched.page.context.set_offline(True)
        await watched.until(lost)
        assert "connection lost" in await watched.page.inner_text("#connection")
        await watched.page.context.set_offline(False)
        await watched.until("document.getElementById('connection').dataset.state === 'live'")


async def test_where_several_processes_answer_it_tells_them_apart() -> None:
    answers = [Dashboard(Limiter("10/s", name="search")).state() for _ in range(2)]
    turn = 0

    async def one_of_two(scope: Any, receive: Any, send: Any) -> None:
        nonlocal turn
        if scope["type"] == "http" and scope["path"] == "/state":
            turn += 1
            answer = {
                **answers[turn % 2],
                "process": 100 + turn % 2 if turn < 10 else 1,
                "id": f"{turn % 2}abcd-1",
                "at": 1000.0 - 500 * (turn % 2) + turn,
            }
            await PlainTextResponse(json.dumps(answer))(scope, receive, send)
        else:
            await Dashboard(Limiter("1/s"))(scope, receive, send)

    async with serving(one_of_two) as address, opened(f"http://{address}/") as watched:
        await watched.polls(3)
        tabs = await watched.page.locator("#limiters button").all_inner_texts()
        assert sorted(re.sub(r"\s+", " ", tab) for tab in tabs) == [
            "process 100 search",
            "process 101 search",
        ]
        while turn < 12:
            await watched.polls(1)
        tabs = await watched.page.locator("#limiters button").all_inner_texts()
        assert sorted(re.sub(r"\s+", " ", tab) for tab in tabs) == [
            "process 1 (0abc) search",
            "process 1 (1abc) search",
        ]
        assert watched.complaints == []


async def test_slow_answers_and_odd_names_are_drawn_all_the_same() -> None:
    names = ["constructor", "__proto__", "a, b", "<b>bold</b>"]
    limiters = [Limiter("10/s", name=name) for name in names]
    page = Dashboard(*limiters, title="<i>odd</i>")
    asked = 0

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        if scope["type"] == "http" and scope["path"] == "/state":
            asked += 1
            for limiter in limiters:
                limiter.try_acquire()
            # As if it had taken four seconds: a service in trouble is when one looks.
            answer = {**page.state(), "at": 4.0 * asked}
            await PlainTextResponse(json.dumps(answer))(scope, receive, send)
        else:
            await page(scope, receive, send)

    async with serving(slowly) as address, opened(f"http://{address}/") as watched:
        await watched.polls(3)
        assert await watched.line("admitted", "admitted") == 0.25
        assert await watched.page.inner_text("h1") == "<i>odd</i>"
        for name in names:
            await watched.page.get_by_role("tab", name=name).click()
            assert name in await watched.page.inner_text("#explanation")
            await watched.polls(1)
            assert await watched.tile("admitted") > 0
        assert watched.complaints == []


async def test_a_process_that_took_anothers_place_is_shown_in_its_place() -> None:
    answer = Dashboard(Limiter("10/s", name="search")).state()
    page = Dashboard(Limiter("1/s"))
    process, asked = 1, 0

    async def restarted(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        if scope["type"] == "http" and scope["path"] == "/state":
            asked += 1
            said = {**answer, "process": process, "id": f"{process}", "at": float(asked)}
            await PlainTextResponse(json.dumps(said))(scope, receive, send)
        else:
            await page(scope, receive, send)

    async with serving(restarted) as address, opened(f"http://{address}/") as watched:
        at = watched.page
        await at.get_by_role("tab").focus()
        process = 2
        await watched.until("document.querySelectorAll('#limiters button').length === 2")
        assert await at.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
        await watched.until("document.querySelectorAll('#limiters button').length === 1")
        await watched.polls(1)
        assert await at.evaluate("latest().process") == 2
        assert await at.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
        assert watched.complaints == []


# Without a browser


@pytest.fixture
def service() -> Starlette:
    limiter = Limiter("10/s", name="search")
    return Starlette(
        routes=[
            Mount("/limits", Dashboard(limiter, title="mounted")),
            Route("/", PlainTextResponse("the service")),
        ]
    )


async def test_it_can_be_mounted_anywhere(service: Starlette) -> None:
    async with serving(service) as address, httpx2.AsyncClient() as client:
        moved = await client.get(f"http://{address}/limits?operator=me")
        assert moved.status_code == 307
        assert moved.headers["location"].endswith("limits/?operator=me")
        page = await client.get(f"http://{address}/limits/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'sha256-" in page.headers["content-security-policy"]
        assert (await client.head(f"http://{address}/limits/")).content == b""
        state = (await client.get(f"http://{address}/limits/state")).json()
        assert state["title"] == "mounted"
        assert list(state["limiters"]) == ["search"]
        assert (await client.get(f"http://{address}/limits/other")).status_code == 404
        refused = await client.post(f"http://{address}/limits/state")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        async with opened(f"http://{address}/limits/") as watched:
            assert await watched.page.title() == "mounted"


async def test_it_redirects_by_itself_where_nobody_else_does() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/limits",
        "root_path": "/limits",
        "query_string": b"a=b",
        "headers": [],
    }
    await Dashboard(Limiter("1/s"))(scope, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 307
    assert (b"location", b"./limits/?a=b") in sent[0]["headers"]


async def test_it_names_no_key_unless_it_is_told_to() -> None:
    limiter = Limiter("2/h", name="search")
    for _ in range(2):
        limiter.try_acquire("secret")
    limiter.try_acquire("other")
    assert "secret" not in json.dumps(Dashboard(limiter).state())
    state = Dashboard(limiter, show_keys=True).state()
    assert "0 of 2 left of 2/h for 'secret'" in state["limiters"]["search"]["explanation"]
    asked = Dashboard(limiter).state("other")
    assert "1 of 2 left of 2/h for 'other'" in asked["limiters"]["search"]["explanation"]


async def test_the_key_worth_a_sentence_is_the_one_with_the_longest_queue() -> None:
    limiter = Limiter("1/h", name="search")
    page = Dashboard(limiter, show_keys=True)
    assert "for ''" in page.state()["limiters"]["search"]["explanation"]
    waiting = []
    for key, count in (("short", 2), ("long", 4)):
        for _ in range(count):
            waiting.append(asyncio.ensure_future(limiter.acquire(key)))
    await asyncio.sleep(0)
    text = page.state()["limiters"]["search"]["explanation"]
    assert "3 callers wait for 'long'" in text
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_key_is_said_to_be_strange_only_if_nothing_is_known_of_it() -> None:
    limiter = Limiter("10/s", name="search", clock=FakeClock())
    limiter.hold("held", seconds=60)
    limiter.try_acquire("used")
    full = Limiter("10/s", name="full", max_keys=1, clock=FakeClock())
    full.try_acquire("a")
    full.try_acquire("b", cost=10)
    page = Dashboard(limiter, full)
    for key, strange in (("held", False), ("used", False), ("usde", True)):
        told = page.state(key)["limiters"]["search"]["explanation"]
        assert ("Nothing is held for" in told) == strange, told
    assert "Nothing" not in page.state("b")["limiters"]["full"]["explanation"]


async def test_the_headline_is_of_all_keys_where_none_is_asked_for() -> None:
    limiter = Limiter("2/h", name="search")
    page = Dashboard(limiter)
    for number in range(3):
        limiter.try_acquire(f"user:{number}")
    told = page.state()["limiters"]["search"]["explanation"]
    assert told == "search: 2/h configured; 3 keys are held, and 0 callers wait."
    limiter.try_acquire("")
    assert "1 of 2 left of 2/h for ''" in page.state()["limiters"]["search"]["explanation"]
    limiter.try_acquire("user:1", limit=9)
    told = page.state("user:1")["limiters"]["search"]["explanation"]
    assert "2/h configured, where a call brings no limit of its own; " in told


def test_two_of_one_name_are_in_shadow_only_if_both_are() -> None:
    bites, tried = Limiter("1/h", name="same"), Limiter("1/h", name="same", shadow=True)
    assert not Dashboard(tried, bites).state()["limiters"]["same"]["shadow"]
    assert Dashboard(tried).state()["limiters"]["same"]["shadow"]


def test_what_cannot_be_explained_or_is_no_number_stops_no_page() -> None:
    clock = StoppingClock()
    broken = Limiter("1/s", name="broken", clock=clock)
    page = Dashboard(broken, Limiter("1/s", name="sound"))
    clock.fails = True
    state = page.state()
    assert json.dumps(state, allow_nan=False)
    told = state["limiters"]["broken"]["explanation"]
    assert told == "broken cannot be explained: OSError('the clock stopped')"
    assert state["limiters"]["sound"]["metrics"]["aiolimit_admitted"] == {"": 0}


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "Dashboard needs at least one limiter to show"),
        (("search",), {}, "Dashboard takes limiters, not 'search'"),
        ((Limiter("1/s"),), {"title": ""}, "title must be text that is not empty, not ''"),
        ((Limiter("1/s"),), {"show_keys": 1}, "show_keys must be True or False, not 1"),
    ],
)
def test_wrong_options_are_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Dashboard(*arguments, **options)
