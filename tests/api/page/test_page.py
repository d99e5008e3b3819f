"""The page in a browser: what it shows of a real server, and what nobody can make it do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from fairlead import Fairlead
from fairlead.api.settings import ApiSettings
from tests.api.serving import new_token, served
from tests.cli.running import answered
from tests.support.browser import Page, chromium, open_page
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium on this machine"),
]

HOSTILE = "<img src=x onerror=\"window.evil='tenant'\"> & acme/eu"
JOBS = """
import asyncio, os
from fairlead import Fairlead

app = Fairlead(os.environ["FAIRLEAD_URL"])

@app.task(name="mail.<img>send", queue="mail")
async def send(seconds: float) -> None:
    await asyncio.sleep(seconds)

@app.task(name="reports.render", queue="reports", max_retries=0)
async def render(why: str) -> None:
    raise ValueError(why)
"""
WIDTHS = (360, 768, 921, 1280)
# The first element that reaches beyond the window, without those that only screen readers meet.
BEYOND = """
[...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  const hidden = each.closest(".hidden, caption, thead, .skip, svg");
  return !hidden && box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((each) => each.outerHTML.slice(0, 200))[0] ?? ""
"""
MARKUP = 'document.querySelectorAll("main img, main script, main b, main a").length'


def row(table: str, text: str) -> str:
    """An expression: the text of the row that has this one in its head; empty if there is none."""
    return f"""([...document.querySelectorAll("#{table} tbody tr")]
        .find((row) => row.cells[0].textContent.includes({json.dumps(text)}))?.innerText ?? "")"""


def cell(table: str, text: str, label: str) -> str:
    """An expression: the text of the cell below a label, in the row that has this in its head."""
    return f"""([...document.querySelectorAll("#{table} tbody tr")]
        .find((row) => row.cells[0].textContent.includes({json.dumps(text)}))
        ?.querySelector('[data-label="{label}"]')?.textContent ?? "")"""


class Site:
    """A broker, a server of the API in a process of its own, and an app that enqueues."""

    def __init__(self, broker: Running, folder: Path, url: str, app: Fairlead) -> None:
        self.broker, self.folder, self.url, self.app = broker, folder, url, app

        @app.task(name="mail.<img>send", queue="mail")
        async def send(seconds: float) -> None: ...

        @app.task(name="reports.render", queue="reports")
        async def render(why: str) -> None: ...

        self._send, self._render = send, render

    async def mail(self, tenant: str, count: int, seconds: float = 0.0) -> None:
        """Enqueue tasks that take so many seconds each."""
        send = self._send.using(tenant=tenant)
        await self.app.aenqueue_many(send.call(seconds) for _ in range(count))

    async def fail(self, tenant: str, why: str) -> None:
        """Enqueue a task that dies of this."""
        await self._render.using(tenant=tenant).aenqueue(why)

    async def token(self, *options: str) -> str:
        """A token as an operator makes it."""
        return await asyncio.to_thread(new_token, self.broker.url, *options)


@contextlib.asynccontextmanager
async def a_site(folder: Path, *options: str) -> AsyncIterator[Site]:
    """All of it but workers."""
    (folder / "jobs.py").write_text(JOBS, encoding="utf-8")
    with server(tcp=True) as broker, served("--url", broker.url, *options) as api:
        async with Fairlead(broker.url) as app:
            yield Site(broker, folder, api.url, app)


@contextlib.contextmanager
def a_worker(site: Site) -> Iterator[WorkerProcess]:
    """A worker of the app in a process of its own."""
    worker = WorkerProcess(site.folder, "-c", "4", environment={"FAIRLEAD_URL": site.broker.url})
    try:
        yield worker.start()
    finally:
        worker.close()


async def fits(page: Page) -> None:
    """At every width and in both schemes, nothing reaches beyond the window."""
    for scheme in ("light", "dark"):
        await page.prefer(color_scheme=scheme)
        for width in WIDTHS:
            await page.resize(width)
            assert await page.value("document.documentElement.scrollWidth") == width
            assert await page.value(BEYOND) == ""


async def test_a_link_signs_a_tab_in_once_and_is_in_no_history(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        order = ("token", "link", "--at", site.url, "--url", site.broker.url)
        link = (await asyncio.to_thread(answered, *order)).stdout.strip()
        async with open_page() as page:
            await page.open(link)
            await page.until('document.getElementById("state-text").textContent === "Live"')
            assert "sign-in" not in await page.value("location.href")
            await page.open(site.url)  # the tab keeps the token
            await page.until('document.getElementById("state-text").textContent === "Live"')
        async with open_page() as other:
            await other.open(link)
            await other.until('!document.getElementById("sign-in").hidden')
            assert "used already" in await other.text("#sign-in-why")


async def test_what_goes_on_is_shown_while_it_goes_on(tmp_path: Path) -> None:
    async with a_site(tmp_path, "--open-to-loopback") as site, open_page() as page:
        await site.app.aconfigure_tenant("heavy", weight=3)
        await site.app.aconfigure_limiter("smtp", concurrency=2)
        await site.mail("heavy", 40, 0.05)
        await site.mail(HOSTILE, 40, 0.05)
        await site.fail(HOSTILE, HOSTILE)
        await page.open(site.url)
        await page.until('document.getElementById("state-text").textContent === "Live"')
        # Nobody works yet: all of it waits.
        await page.until(f'{cell("queues", "mail", "Ready")} === "80"')
        assert "No worker" in await page.text("#workers")
        await page.until(row("limiters", "smtp"))
        await page.until(row("health", "eviction"))
        with a_worker(site) as worker:
            await page.until('document.querySelector("#workers tbody tr") !== null')
            await page.until(f'{row("dead", "ValueError")}.includes("reports.render")')
            await page.until(f"{row('tenants', HOSTILE)}")
            await page.until(f'{cell("queues", "mail", "Ready")} === "0"')
            # What comes now is seen without a reload.
            await site.mail("latecomer", 60, 1.0)
            await page.until(row("tenants", "latecomer"))
            await page.until(f'{row("workers", "")}.includes("mail.<img>send")')
            rate = 'Number(document.querySelector("[data-kind=completed] p span").textContent)'
            await page.until(f"{rate} > 0")
            line = 'document.querySelector("[data-kind=completed] .line").getAttribute("d")'
            assert str(await page.value(line)).startswith("M")
            worker.signal(signal.SIGTERM)
            await page.until('document.querySelector("#workers .empty") !== null')  # it has left
        assert HOSTILE in await page.value('document.getElementById("tenants").textContent')
        assert HOSTILE[:18] in await page.value('document.getElementById("dead").textContent')
        assert await page.value(MARKUP) == 0
        assert await page.value("window.evil ?? null") is None
        await fits(page)
        assert page.complaints == []
        assert page.requests
        assert all(each.startswith(f"{site.url}/") for each in page.requests)


async def test_a_server_with_tokens_asks_for_one_and_keeps_it_for_the_tab(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, open_page() as page:
        await site.mail("acme", 3)
        submit = await site.token("--scopes", "submit")
        good = await site.token("--scopes", "read")
        await page.open(site.url)
        why = 'document.getElementById("sign-in-why").textContent'
        await page.until(f'{why}.includes("scope “read”")')
        await fits(page)
        await give(page, "fl_nobody_knows")
        await page.until(f'{why}.includes("does not know this token")')
        await give(page, submit)
        await page.until(f'{why}.includes("lacks the scope")')
        await give(page, "two words")
        await page.until(f'{why}.includes("one word")')
        await give(page, good)
        await page.until(row("queues", "mail"))
        await page.until('document.getElementById("state-text").textContent === "Live"')
        assert good in await page.value("JSON.stringify({...sessionStorage})")
        assert await page.value("localStorage.length + document.cookie.length") == 0
        assert await page.value("location.href") == f"{site.url}/"
        await page.call("Page.reload")
        await page.until(row("queues", "mail"))
        await page.value('document.getElementById("forget").click()')
        await page.until(f'{why}.includes("scope “read”")')
        assert await page.value("sessionStorage.length") == 0
        secrets = [token.rpartition("_")[2] for token in (submit, good)]
        assert not [each for each in page.requests for secret in secrets if secret in each]
        assert not [each for each in page.complaints if not each.startswith("network: ")]


async def give(page: Page, token: str) -> None:
    """Type a token and press the button."""
    await page.until('!document.getElementById("sign-in").hidden')
    await page.value(f"""(document.getElementById("token").value = {json.dumps(token)},
        document.querySelector("#sign-in button").click())""")


async def test_a_token_of_a_tenant_shows_that_tenant_alone(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, open_page() as page:
        await site.mail("acme", 3)
        await site.mail("rival", 5)
        await page.open(site.url)
        await give(page, await site.token("--scopes", "read", "--tenant", "acme"))
        await page.until(row("tenants", "acme"))
        await page.until(f'{cell("queues", "mail", "Ready")} === "3"')
        await page.until('document.getElementById("workers").hidden')
        await page.until('document.getElementById("limiters").hidden')
        assert "Workers" not in await page.value("document.body.innerText")
        await page.until('document.getElementById("state-text").textContent === "Live"')
        assert "rival" not in await page.value("document.body.textContent")
        assert await page.value('document.querySelectorAll("#tenants tbody tr").length') == 1
        await fits(page)
        assert not [each for each in page.complaints if "403" not in each and "401" not in each]


async def test_a_broker_that_is_away_is_told_until_it_is_back(tmp_path: Path) -> None:
    async with a_site(tmp_path, "--open-to-loopback") as site, open_page() as page:
        await site.mail("acme", 3)
        await page.open(site.url)
        await page.until(row("queues", "mail"))
        site.broker.kill()
        state = 'document.getElementById("state").innerText'
        await page.until(f"/Broker away since \\d\\d:\\d\\d:\\d\\d/.test({state})")
        assert "away since" in await page.text("#notice")
        assert await page.value(row("queues", "mail"))  # what was last known
        await page.until(f"/stale for 1\\d s/.test({state})", 30.0)
        await fits(page)
        site.broker.start()
        await page.until(f'{state}.trim() === "Live"', 40.0)
        assert not await page.text("#notice")


async def test_a_page_that_asks_too_often_asks_less_often(tmp_path: Path) -> None:
    async with a_site(tmp_path, "--token-rate", "0.2") as site, open_page() as page:
        await page.open(site.url)
        await give(page, await site.token("--scopes", "read"))
        await page.until('document.getElementById("state-text").textContent.includes("less often")')
        before = len(page.requests)
        await asyncio.sleep(5.0)
        assert len(page.requests) - before <= 8  # and not the twenty that would be due


async def test_a_page_that_nobody_sees_or_that_is_paused_asks_for_nothing() -> None:
    async with mounted() as (url, _), open_page() as page:
        await page.open(url)
        state = 'document.getElementById("state-text").textContent'
        await page.until(f'{state} === "Live"')

        async def shown(hidden: bool) -> None:
            await page.value(f"""(Object.defineProperty(document, "hidden",
                {{ value: {json.dumps(hidden)}, configurable: true }}),
                document.dispatchEvent(new Event("visibilitychange")))""")

        async def silent() -> bool:
            await asyncio.sleep(0.5)  # what was on its way
            before = len(page.requests)
            await asyncio.sleep(5.0)  # longer than anything that is due
            return len(page.requests) == before

        assert not await silent()
        await shown(True)
        assert await silent()
        await shown(False)
        assert not await silent()
        await page.value('document.getElementById("pause").click()')
        assert await page.value(state) == "Paused"
        await shown(True)
        await shown(False)  # coming back does not undo it
        assert await silent()
        await page.value('document.getElementById("pause").click()')
        await page.until(f'{state} === "Live"')
        assert page.complaints == []


@contextlib.asynccontextmanager
async def mounted(at: str = "/ops/queue") -> AsyncIterator[tuple[str, Fairlead]]:
    """The API on a broker in memory, mounted into another application."""
    app = Fairlead("memory://")
    own = app.asgi(ApiSettings(open_to_loopback=True))
    config = uvicorn.Config(
        Starlette(routes=[Mount(at, own)]), port=0, log_config=None, lifespan="off", ws="none"
    )
    runner = uvicorn.Server(config)
    serving = asyncio.create_task(runner.serve())
    try:
        await until(lambda: runner.started, lambda: "the server to start", 20.0)
        port = runner.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}{at}", app
    finally:
        runner.should_exit = runner.force_exit = True
        await serving
        await app.aclose()


async def test_a_mounted_page_finds_its_files_and_the_api_below_its_base() -> None:
    async with mounted() as (url, app), open_page() as page:

        @app.task(name="add", queue="sums")
        async def add() -> None: ...

        await add.using(tenant="acme").aenqueue()
        await page.open(url)  # without the slash
        await page.until(row("queues", "sums"))
        assert await page.value("location.pathname") == "/ops/queue/"
        assert all(each.startswith(url) for each in page.requests)
        assert page.complaints == []


async def test_long_names_and_many_rows_fit() -> None:
    async with mounted() as (url, app), open_page() as page:
        for number in range(12):
            queue = f"q{number}." + "q" * 60

            @app.task(name=f"long_{number}." + "t" * 180, queue=queue, max_retries=0)
            async def fail() -> None:
                raise ValueError("e" * 5_000)

            for tenant in ("W" * 100, "\u05d0\u05d1" * 30, f"tenant {number}" * 8):
                await fail.using(tenant=tenant).aenqueue()
        async with app.worker(concurrency=4):
            await page.open(f"{url}/")
            await page.until('document.querySelectorAll("#dead tbody tr").length === 12', 30.0)
            await page.until('document.querySelector("#workers tbody tr") !== null')
        await fits(page)
        options = 'document.getElementById("tenants-queue").options.length'
        assert await page.value(options) == 13  # and all of them
        await page.value("""(document.getElementById("tenants-queue").value = "",
            document.getElementById("tenants-queue").dispatchEvent(new Event("change")))""")
        await page.until('document.querySelectorAll("#tenants tbody tr").length === 14')
        await fits(page)
        assert page.complaints == []


async def test_a_table_can_be_read_without_being_seen() -> None:
    async with mounted() as (url, app), open_page(width=360) as page:

        @app.task(name="add", queue="sums")
        async def add() -> None: ...

        await add.using(tenant="acme").aenqueue()
        await page.open(url)
        await page.until(row("queues", "sums"))
        await page.until(row("tenants", "acme"))
        # At this width rows are blocks: they are still a table to those who hear it.
        nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        roles = [node["role"]["value"] for node in nodes if not node.get("ignored")]
        names = {node.get("name", {}).get("value") for node in nodes}
        assert {"table", "row", "rowheader", "columnheader", "cell"} <= set(roles)
        assert {"sums", "acme", "Longest wait", "Oldest"} <= names
        assert any("Queues: how many" in str(name) for name in names)
        assert {"banner", "main", "contentinfo"} <= set(roles)
        focus = "getComputedStyle(document.activeElement).outlineStyle"
        await page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab")
        await page.until('document.activeElement.classList.contains("skip")')
        assert await page.value(focus) == "solid"
        await page.prefer(reduced_motion="reduce")
        moves = 'getComputedStyle(document.querySelector(".bar .got")).transitionProperty'
        assert await page.value(moves) == "none"


async def test_hostile_values_become_sane_ones() -> None:
    async with mounted() as (url, _), open_page() as page:
        await page.open(f"{url}/")

        async def value(expression: str) -> Any:
            return await page.value(
                f"""import("{url}/static/values.js").then((v) => {expression})"""
            )

        assert await value('v.age("2999-01-01T00:00:00Z", 0)') == 0  # never negative
        assert await value('v.age("nonsense", 0)') is None
        assert await value("[NaN, Infinity, -3, 2.7, '4', null].map(v.count)") == [0, 0, 0, 2, 0, 0]
        assert await value("[-1, 0.5, 7, null].map(v.part)") == [0, 0.5, 1, None]
        assert await value("v.text('a\\u202eb\\u0000c\\u200bd')") == "a\ufffdb\ufffdc\ufffdd"
        assert len(await value("v.text('x'.repeat(1e6))")) == 301
        assert await value("[null, 'no', 3, {}, [1, null]].flatMap(v.list)") == []
        times = "[0, 0.0004, 0.42, 3.14, 59.9, 61, 3661, 90061].map(v.lasting)"
        assert await value(times) == [
            "0 ms", "0 ms", "420 ms", "3.1 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h",
        ]  # fmt: skip


async def test_shares_are_judged_as_a_queue_divides_them() -> None:
    async with mounted() as (url, _), open_page() as page:
        await page.open(f"{url}/")
        rows = """(counts) => counts.map(([key, weight, started, ready]) =>
            ({ key, weight, started, ready, share: 0, fair: 0 }))"""

        async def judged(first: list[list[Any]], then: list[list[Any]]) -> dict[str, list[float]]:
            found = await page.value(f"""import("{url}/static/shares.js").then(({{ Shares }}) => {{
                const shares = new Shares(), rows = {rows};
                shares.judge(rows({json.dumps(first)}), "mail", 100);
                const last = rows({json.dumps(then)});
                const about = shares.judge(last, "mail", 110);
                return [about, last.map((row) => [row.key, row.share, row.fair, row.short])];
            }})""")
            about, told = found
            assert about["starts"] == sum(b[2] - a[2] for a, b in zip(first, then, strict=True))
            assert about["seconds"] == 10
            jain.append(about["jain"] and round(about["jain"], 3))
            return {key: [round(value, 3) for value in values] for key, *values in told}

        jain: list[float | None] = []
        # All want more: by weight.
        assert await judged(
            [["a", 3, 0, 9], ["b", 1, 0, 9]], [["a", 3, 60, 9], ["b", 1, 20, 9]]
        ) == {"a": [0.75, 0.75, 0], "b": [0.25, 0.25, 0]}
        # One wants little, and has it: the rest is for the other.
        assert await judged(
            [["a", 3, 0, 0], ["b", 1, 0, 9]], [["a", 3, 10, 0], ["b", 1, 90, 9]]
        ) == {"a": [0.1, 0.1, 0], "b": [0.9, 0.9, 0]}
        # One waits for its part, and does not get it.
        assert await judged(
            [["a", 1, 0, 9], ["b", 1, 500, 9]], [["a", 1, 10, 9], ["b", 1, 590, 9]]
        ) == {"a": [0.1, 0.5, 0.4], "b": [0.9, 0.5, 0]}
        assert jain == [1.0, None, 0.61]
