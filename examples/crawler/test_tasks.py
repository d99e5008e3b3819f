from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from crawler.tasks import app, crawl
from fairlead import Fairlead
from fairlead.testing import Kit


class Site(ThreadingHTTPServer):
    """A site of three pages, which may be down."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.seen: Counter[str] = Counter()
        self.is_down = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Pages(BaseHTTPRequestHandler):
    server: Site  # type: ignore[mutable-override]

    def do_GET(self) -> None:
        self.server.seen[self.path] += 1
        self.send_response(503 if self.server.is_down else 200)
        self.end_headers()
        self.wfile.write(b'<a href="/a">a</a> <a href="/b#part">b</a> <a href="mailto:x">x</a>')

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def fairlead_target() -> Fairlead:
    return app


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    made = [Site(), Site()]
    for site in made:
        threading.Thread(target=site.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    for site in made:
        site.shutdown()
        site.server_close()


def test_each_page_is_fetched_once_in_its_time(fairlead_kit: Kit, sites: list[Site]) -> None:
    crawl(sites[0].url, depth=2)
    done = fairlead_kit.drain()
    assert done == 2  # the burst of the host
    assert [left.code for left in done.left] == ["limiter_rate"]
    assert fairlead_kit.elapse("1m") == 1
    assert sites[0].seen == {"/": 1, "/a": 1, "/b": 1}


def test_a_host_that_fails_has_a_rest_and_holds_up_nobody(
    fairlead_kit: Kit, sites: list[Site]
) -> None:
    sites[0].is_down = True
    for number in range(6):
        crawl(f"{sites[0].url}{number}", depth=0)
        crawl(f"{sites[1].url}{number}", depth=0)
    done = fairlead_kit.elapse("10s", raise_errors=False)
    assert sum(sites[0].seen.values()) == 3
    assert sum(sites[1].seen.values()) == 6
    assert "breaker_open" in {left.code for left in done.left}
    sites[0].is_down = False
    fairlead_kit.elapse("1h", raise_errors=False)
    assert len(sites[0].seen) == 6
    assert app.snapshot().completed == 12
