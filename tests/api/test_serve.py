"""A real server on a real broker: heads, drains, outages."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest

from fairlead.api.http.header_limits import MAX_HEAD, MAX_HEADERS
from tests.api.app import problem
from tests.api.serving import Served, new_token, served
from tests.support.servers import Running, server


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def api(valkey: Running) -> Iterator[Served]:
    with served("--url", valkey.url, "--drain-delay", "0.2") as running:
        yield running


@pytest.fixture(scope="module")
def caller(valkey: Running, api: Served) -> Iterator[httpx.Client]:
    token = new_token(valkey.url)
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=api.url, headers=headers, timeout=30) as client:
        yield client


def answered(api: Served, data: bytes, seconds: float = 20.0) -> bytes:
    """What the server says to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=seconds) as connection:
        connection.sendall(data)
        found = b""
        try:
            while part := connection.recv(65_536):
                found += part
        except ConnectionResetError:
            pass
        return found


def test_a_task_goes_all_the_way(api: Served, caller: httpx.Client) -> None:
    assert caller.get("/readyz").json() == {"status": "ok"}
    made = caller.post("/api/v1/tasks", json={"task": "echo", "id": "a"})
    assert made.status_code == 201, made.text
    again = caller.post("/api/v1/tasks", json={"task": "echo", "id": "a"})
    assert again.status_code == 200
    seen = caller.get("/api/v1/tasks/a")
    assert seen.json()["state"] == "queued"
    assert "server" not in seen.headers
    problem(httpx.get(f"{api.url}/api/v1/tasks/a"), 401, "unauthorized")


def test_names_of_the_machine_are_known_with_their_port_only(
    api: Served, caller: httpx.Client
) -> None:
    path = "/api/v1/tasks"
    assert caller.get(path, headers={"host": f"localhost:{api.port}"}).status_code == 200
    problem(caller.get(path, headers={"host": "localhost"}), 403, "forbidden")
    problem(caller.get(path, headers={"host": f"evil.example:{api.port}"}), 403, "forbidden")


def test_lines_are_answered_while_they_come(api: Served, caller: httpx.Client) -> None:
    """One connection, by hand: the answer to the first line is there before the second is sent."""
    token = caller.headers["authorization"]
    head = (
        f"POST /api/v1/tasks/batch HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\n"
        f"Authorization: {token}\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    ).encode()
    line = b'{"task":"echo"}\n'
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        connection.sendall(head + b"%x\r\n%s\r\n" % (len(line), line))
        found = b""
        while b'"index":0' not in found:
            # The first piece is answered when the next one is there, or the body ends.
            found += connection.recv(65_536)
            if b"200 OK" in found and b'"index":0' not in found:
                connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
        connection.sendall(b"0\r\n\r\n")
        while part := connection.recv(65_536):
            found += part
        assert b'"code":"end"' in found


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nHost: x\r\nx-long: " + b"a" * (MAX_HEAD + 1_000) + b"\r\n\r\n",
        b"GET /livez?" + b"a" * (MAX_HEAD + 1_000) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    ],
    ids=["bytes", "target", "count"],
)
def test_a_long_head_is_refused(api: Served, head: bytes) -> None:
    assert answered(api, head).startswith(b"HTTP/1.1 431 ")


def test_what_is_no_http_is_refused(api: Served) -> None:
    assert answered(api, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.slow
def test_a_head_that_does_not_end_is_given_up(api: Served) -> None:
    began = time.monotonic()
    assert answered(api, b"GET /livez HTTP/1.1\r\nHost: x\r\n") == b""
    assert answered(api, b"") == b""
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_broker_that_hangs_or_is_gone_is_told_soon() -> None:
    """Its own server: what is tried here would disturb the others."""
    with server() as broker, served("--url", broker.url, "--open-to-loopback") as api:
        client = httpx.Client(base_url=api.url, timeout=30)
        with client:
            made = client.post("/api/v1/tasks", json={"task": "echo"})
            assert made.status_code == 201
            calls = (
                ("GET", "/readyz", None),
                ("POST", "/api/v1/tasks", {"task": "echo"}),
                ("GET", f"/api/v1/tasks/{made.json()['id']}", None),
                ("GET", f"/api/v1/tasks/{made.json()['id']}/result?wait=0", None),
                ("GET", "/api/v1/tasks", None),
            )
            for away in (broker.pause, broker.kill):
                away()
                for method, path, body in calls:
                    began = time.monotonic()
                    answer = client.request(method, path, json=body)
                    assert time.monotonic() - began < 3.0, path  # two, and a busy machine
                    assert answer.status_code == 503, answer.text
                    assert int(answer.headers["retry-after"]) >= 1
                assert client.get("/livez").status_code == 200


def test_term_drains(valkey: Running) -> None:
    with served("--url", valkey.url, "--open-to-loopback", "--drain-delay", "0.5") as api:
        with httpx.Client(base_url=api.url, timeout=30) as client:
            made = client.post("/api/v1/tasks", json={"task": "echo"}).json()
            where = httpx.URL(api.url)
            with closing(HTTPConnection(where.host, where.port or 0, timeout=60)) as poll:
                poll.request("GET", "/livez")
                assert poll.getresponse().read()
                poll.request("GET", f"/api/v1/tasks/{made['id']}/result?wait=60")
                # When this is answered, what came before over a connection that was open is read.
                assert client.get("/readyz").status_code == 200
                began = time.monotonic()
                api.process.terminate()
                while (ready := client.get("/readyz")).status_code == 200:
                    assert time.monotonic() - began < 10
                problem(ready, 503, "draining")
                assert poll.getresponse().status == 202
        assert api.process.wait(20) == 0
        assert time.monotonic() - began < 10
