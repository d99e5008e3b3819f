"""Bodies and heads that are too long, too slow or never end, sent to a real server."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fairlead.api.http.header_limits import HeadLimits
from fairlead.api.settings import ApiSettings
from tests.api.serving import Served, new_token, served
from tests.support.servers import Running, server

TASKS = "/api/v1/tasks"
MIB = 1024 * 1024
# `fairlead api`, for which a head or a silence of a body may last a second instead of ten.
HURRIED = """
from functools import partial
from fairlead.api import settings
from fairlead.api.http.header_limits import HeadLimits
from fairlead.cli import main

HeadLimits.head_time = 1.0
settings.ApiSettings = partial(settings.ApiSettings, body_idle=1.0)
main.main()
"""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the memory from /proc"
)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def api(valkey: Running) -> Iterator[Served]:
    with served("--url", valkey.url, "--drain-delay", "0.1") as running:
        yield running


@pytest.fixture(scope="module")
def token(valkey: Running) -> str:
    return new_token(valkey.url)


def memory(api: Served) -> float:
    """What the server holds, in MiB."""
    for line in Path(f"/proc/{api.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("it has ended")


def head(api: Served, token: str, path: str = TASKS, **headers: str) -> bytes:
    """The head of a request; names of headers have _ for -."""
    lines = {
        "Host": f"127.0.0.1:{api.port}",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode()


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            found += part
    return found


def poured(api: Served, first: bytes, piece: bytes, most: int) -> tuple[bytes, int]:
    """Send a head, then a piece again and again; the answer, and how many bytes went out."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        connection.sendall(first)
        went, answer = 0, b""
        while went < most:
            try:
                connection.settimeout(20)
                connection.sendall(piece)
                went += len(piece)
                connection.settimeout(0.0)
                answer += connection.recv(65_536)  # and goes on, whatever it says
            except BlockingIOError:
                continue
            except ConnectionError:
                break
        connection.settimeout(20)
        return answer + read_all(connection), went


def test_a_gigabyte_is_refused_before_it_is_sent(api: Served, token: str) -> None:
    before = memory(api)
    for path in (TASKS, f"{TASKS}/batch", f"{TASKS}/act", "/api/v1/schedules/a"):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
            first = head(api, token, path, Content_Length=str(1024 * MIB))
            connection.sendall(first.replace(b"POST", b"PUT") if "schedules" in path else first)
            answer = read_all(connection)  # of the body there is nothing
        assert answer.startswith(b"HTTP/1.1 413 "), (path, answer)
        said = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (said["field"], said["value"]) == ("Content-Length", str(1024 * MIB))
        assert time.monotonic() - began < 5
    assert memory(api) - before < 10


@pytest.mark.parametrize("path", [TASKS, f"{TASKS}/batch"])
def test_an_endless_body_is_cut_off(api: Served, token: str, path: str) -> None:
    before = memory(api)
    data = b'{"task": "a", "args": ["' + b"x" * 65_000
    piece = b"%x\r\n%s\r\n" % (len(data), data)
    first = head(api, token, path, Transfer_Encoding="chunked")
    answer, went = poured(api, first, piece, 200 * MIB)
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert went < 64 * MIB
    assert memory(api) - before < 60  # the limit of an array is 16 MiB


def test_an_endless_line_is_cut_off(api: Served, token: str) -> None:
    before = memory(api)
    data = b"x" * 65_000
    piece = b"%x\r\n%s\r\n" % (len(data), data)
    first = head(
        api,
        token,
        f"{TASKS}/batch",
        Transfer_Encoding="chunked",
        Content_Type="application/x-ndjson",
    )
    answer, went = poured(api, first, piece, 200 * MIB)
    assert b"too-large" in answer, answer[:500]
    assert went < 64 * MIB
    assert memory(api) - before < 40


@pytest.mark.slow
def test_endless_lines_take_no_more_memory_with_time(api: Served, token: str) -> None:
    """Good for as long as somebody reads the answers; bad lines are no reason to keep anything."""
    data = b'{"args":[]}\n' * 5_000
    piece = b"%x\r\n%s\r\n" % (len(data), data)
    first = head(
        api,
        token,
        f"{TASKS}/batch",
        Transfer_Encoding="chunked",
        Content_Type="application/x-ndjson",
    )
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as connection:
        reader = threading.Thread(target=read_all, args=(connection,))
        connection.sendall(first)
        reader.start()
        sizes = []
        for _ in range(5):
            for _ in range(4):
                connection.sendall(piece)
            sizes.append(memory(api))
        connection.sendall(b"0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        reader.join(60)
    assert sizes[-1] - sizes[0] < 15, sizes


@pytest.mark.slow
def test_who_does_not_read_the_answers_is_not_read_either(api: Served, token: str) -> None:
    before = memory(api)
    data = b'{"args":[]}\n' * 5_000
    piece = b"%x\r\n%s\r\n" % (len(data), data)
    first = head(
        api,
        token,
        f"{TASKS}/batch",
        Transfer_Encoding="chunked",
        Content_Type="application/x-ndjson",
    )
    with socket.create_connection(("127.0.0.1", api.port), timeout=3) as connection:
        connection.sendall(first)
        went = 0
        try:
            while went < 200 * MIB:
                connection.sendall(piece)
                went += len(piece)
        except OSError:  # nobody takes it any more
            pass
    assert went < 100 * MIB
    assert memory(api) - before < 60


def test_compressed_bodies_are_not_taken(api: Served, token: str) -> None:
    """A few bytes that would be a gigabyte: they are not looked at."""
    before = memory(api)
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip"):
        answer = httpx.post(
            f"{api.url}{TASKS}",
            content=b"\x1f\x8b" + b"\0" * 100,
            headers={
                "authorization": f"Bearer {token}",
                "content-type": "application/json",
                "content-encoding": encoding,
            },
        )
        assert answer.status_code == 415
        assert answer.json()["field"] == "Content-Encoding"
    assert memory(api) - before < 10


def test_two_lengths_or_a_length_and_chunks_are_refused(api: Served, token: str) -> None:
    """What one server takes for the end another may take for the beginning of a request."""
    body = b'{"task":"a"}'
    for extra in (
        b"Content-Length: 12\r\nContent-Length: 5\r\n",
        b"Content-Length: 12\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1e3\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
    ):
        first = head(api, token).replace(
            b"\r\n\r\n", b"\r\n" + extra + b"Connection: close\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
            connection.sendall(first + body)
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert not answer.startswith(b"HTTP/1.1 2"), (extra, answer)
        assert b"HTTP/1.1 5" not in answer, (extra, answer)


@pytest.mark.slow
def test_slow_bodies_and_heads_are_cut_off(valkey: Running, token: str) -> None:
    """A byte now and then, from many at once; the others are answered all the while."""
    assert (ApiSettings().body_idle, HeadLimits.head_time) == (10.0, 10.0)
    with served("--url", valkey.url, "--drain-delay", "0.1", program=HURRIED) as api:
        slow_requests(api, token)


def slow_requests(api: Served, token: str) -> None:
    began = time.monotonic()
    slow = []
    for number in range(40):
        connection = socket.create_connection(("127.0.0.1", api.port), timeout=60)
        first = head(api, token, Content_Length="1000")
        connection.sendall(first if number % 2 else first[:40])
        slow.append(connection)
    with httpx.Client(base_url=api.url, headers={"authorization": f"Bearer {token}"}) as client:
        assert client.get(TASKS).status_code == 200
        left = set(slow)
        answers: list[bytes] = []
        while left and time.monotonic() - began < 100:
            for each in sorted(left, key=id):
                try:
                    each.settimeout(0.01)
                    part = each.recv(65_536)
                    answers.append(part)
                    left.discard(each)
                except TimeoutError:
                    with contextlib.suppress(OSError):
                        each.sendall(b"x" if answers or slow.index(each) % 2 else b"")
                except ConnectionError:
                    left.discard(each)
            assert client.get("/livez").status_code == 200
            time.sleep(0.1)
    for each in slow:
        each.close()
    assert not left
    assert all(part == b"" or part.startswith(b"HTTP/1.1 4") for part in answers), answers
