"""fairlead worker crawler.tasks:app"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

from fairlead import Backoff, Context, Fairlead

app = Fairlead()
LINK = re.compile(rb'href="([^"]+)"')
LARGEST = 1_000_000  # bytes of a page
RATE = 5.0  # pages a second, of one host


@app.task(queue="crawl", max_retries=4, backoff=Backoff(initial=10), timeout="30s")
def fetch(ctx: Context, url: str, depth: int) -> int:
    """Read a page and enqueue what it links to; how many links there were."""
    request = Request(url, headers={"user-agent": "fairlead-example"})
    with urlopen(request, timeout=20) as answer:
        page = answer.read(LARGEST)
    links = {urldefrag(urljoin(url, link.decode())).url for link in LINK.findall(page)}
    if depth:
        for link in sorted(links):
            crawl(link, depth - 1)
    return len(links)


def crawl(url: str, depth: int) -> None:
    """Enqueue a page, once a day.

    A host is a tenant and has a limiter. So many pages of one host never hold up another one, the
    rate holds over all workers, and after three failures in a row the host has a rest.
    """
    host = urlsplit(url).netloc.replace(":", "-")
    if urlsplit(url).scheme not in ("http", "https") or not host:
        return
    limiter = f"host-{host}"
    app.configure_limiter(limiter, rate=RATE, burst=2, failures=3, cooldown="5m")
    page = hashlib.sha256(url.encode()).hexdigest()
    once = fetch.using(tenant=host, limiters=[limiter], unique=page, unique_for="1d")
    once.enqueue(url, depth)
