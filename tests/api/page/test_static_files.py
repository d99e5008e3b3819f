"""The files of the page: served to everybody, closed to everything that is not ours."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import httpx
import pytest

import fairlead.api.page
from fairlead.api.page.static_files import CONTENT_SECURITY_POLICY
from tests.api.app import open_api

FOLDER = resources.files(fairlead.api.page)
FILES = {
    each.name: each.read_text(encoding="utf-8")
    for each in FOLDER.iterdir()
    if each.is_file() and not each.name.endswith(".py")
}
STATIC = sorted(name for name in FILES if name != "index.html")
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
LARGEST = 64 * 1024  # bytes of all files


@asynccontextmanager
async def stranger(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A caller without a token."""
    async with open_api(**settings) as (api, _), api.caller(headers={}) as client:
        yield client


class _Tags(HTMLParser):
    """What a browser makes of the page: elements with their attributes, and text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.cdata_elem is not None and data.strip():
            self.inline.append(data)


TAGS = _Tags(FILES["index.html"])


async def test_the_page_is_served_to_those_without_a_token() -> None:
    async with stranger() as client:
        assert (await client.get("/api/v1/queues")).status_code == 401
        page = await client.get("/")
        assert page.status_code == 200
        assert page.text == FILES["index.html"]
        for name in STATIC:
            answer = await client.get(f"/static/{name}")
            assert (answer.status_code, answer.text) == (200, FILES[name])
            assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/page.css"])
async def test_nothing_inline_and_nothing_of_others_may_run_in_the_page(path: str) -> None:
    async with stranger() as client:
        headers = (await client.get(path)).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    policy = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"


async def test_a_file_that_is_known_is_not_sent_again() -> None:
    async with stranger() as client:
        first = await client.get("/static/page.js")
        assert first.headers["cache-control"] == "no-cache"
        tag = first.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await client.get("/static/page.js", headers={"if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        other = await client.get("/static/page.css", headers={"if-none-match": tag})
        assert other.status_code == 200


async def test_head_tells_the_length_and_sends_nothing() -> None:
    async with stranger() as client:
        answer = await client.head("/")
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) == len(FILES["index.html"].encode())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_files_are_only_read(method: str) -> None:
    async with stranger() as client:
        answer = await client.request(method, "/static/page.js")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/nothing.js",
        "/static/__init__.py",
        "/static/static_files.py",
        "/static/..%2f__init__.py",
        "/static/%2e%2e/page.js",
        "/static//page.js",
        "/static/index.html",
    ],
)
async def test_no_other_file_can_be_had(path: str) -> None:
    async with stranger() as client:
        assert (await client.get(path)).status_code == 404


async def test_the_page_is_not_shown_under_a_foreign_name() -> None:
    async with stranger() as client:
        for path in ("/", "/static/page.js"):
            answer = await client.get(path, headers={"host": "rebound.example.org"})
            assert answer.status_code == 403


async def test_a_mounted_page_without_its_slash_leads_to_the_one_with_it() -> None:
    async with stranger(prefix="/ops/queue") as client:
        page = await client.get("/ops/queue/")
        assert (page.status_code, page.text) == (200, FILES["index.html"])
        assert (await client.get("/ops/queue/static/page.js")).status_code == 200
        answer = await client.get("/ops/queue")
        assert answer.status_code == 307
        assert answer.headers["location"] == "./queue/"
        assert str(answer.next_request.url) == "http://localhost/ops/queue/"  # type: ignore[union-attr]


def test_every_address_in_the_page_is_relative_and_ours() -> None:
    addresses = [
        attributes[name]
        for _, attributes in TAGS.found
        for name in ("href", "src")
        if name in attributes
    ]
    assert len(addresses) >= 5
    for address in addresses:
        assert address is not None
        assert re.fullmatch(r"#\w+|static/\w+\.\w+", address), address
        if address.startswith("static/"):
            assert address.removeprefix("static/") in STATIC


def test_no_script_style_or_handler_is_inline() -> None:
    assert TAGS.inline == []
    for tag, attributes in TAGS.found:
        assert tag != "style"
        assert tag != "script" or attributes.get("src")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_no_file_names_another_origin() -> None:
    for name, text in FILES.items():
        found = set(re.findall(r"https?://[^\s\"')]+|[\"'(]//\w[^\s\"')]*", text))
        assert found <= {"http://www.w3.org/2000/svg"}, name


def test_no_text_can_become_markup_or_code() -> None:
    ways = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|srcdoc|\beval\b|\bFunction\("
    )
    for name, text in SCRIPTS.items():
        assert not re.search(ways, text), name
        assert not re.search(r"[\"']style[\"']|[\"']on\w+[\"']\s*[,:]", text), name


def test_the_token_is_kept_for_the_tab_alone_and_never_in_an_address() -> None:
    whole = "\n".join(SCRIPTS.values())
    assert "sessionStorage" in whole
    # The one-time code of a sign-in link is taken out of the address before it is used.
    forgets = 'history.replaceState(null, "", location.pathname + location.search)'
    assert whole.count(forgets) == 1
    whole = whole.replace(forgets, "")
    for way in (
        "localStorage",
        "document.cookie",
        "indexedDB",
        "history.",
        "location.href",
        "EventSource(",
    ):
        assert way not in whole, way
    (field,) = [attributes for tag, attributes in TAGS.found if tag == "input"]
    assert field["type"] == "password"
    assert "name" not in field  # so that no form could send it, even without the script


def test_what_a_script_imports_is_served() -> None:
    for text in SCRIPTS.values():
        for imported in re.findall(r"from \"([^\"]+)\"", text):
            assert imported.removeprefix("./") in SCRIPTS


def test_the_page_is_small() -> None:
    assert sum(len(text.encode()) for text in FILES.values()) < LARGEST


def test_every_element_that_a_script_looks_for_is_in_the_page() -> None:
    ids = {attributes["id"] for _, attributes in TAGS.found if "id" in attributes}
    for name, text in SCRIPTS.items():
        assert set(re.findall(r"\bat\(\"([\w-]+)\"\)", text)) <= ids, name


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_it_stands_on(scheme: str) -> None:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", FILES["page.css"])
    colors = {name: light if scheme == "light" else dark for name, light, dark in found}
    pairs = [(ink, on) for ink in ("ink", "soft", "accent") for on in ("ground", "sheet", "faint")]
    pairs += [
        (level, on)
        for level in ("good", "warn", "bad")
        for on in ("ground", "sheet", f"{level}-ground")
    ]
    pairs += [("sheet", "accent")]  # the button of the form
    for ink, on in pairs:
        lighter, darker = sorted((_luminance(colors[ink]), _luminance(colors[on])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, on)
