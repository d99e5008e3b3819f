"""Every status that is promised, provoked on a real server in front of Valkey."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.api.app import problem
from tests.api.serving import Served, new_token, served
from tests.support.servers import Running, server

TASKS = "/api/v1/tasks"


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def api(valkey: Running) -> Iterator[Served]:
    with served("--url", valkey.url, "--drain-delay", "0.1") as running:
        yield running


@pytest.fixture(scope="module")
def call(valkey: Running, api: Served) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {new_token(valkey.url)}"}
    with httpx.Client(base_url=api.url, headers=headers, timeout=30) as client:
        yield client


def test_400_for_what_cannot_be_read(call: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    for data in (b"", b"{", b'{"task": "a"', b"\xff\xfe", b"nonsense"):
        said = problem(call.post(TASKS, content=data, headers=headers), 400, "bad-request")
        assert said["field"] == "body"


def test_401_without_a_valid_token(api: Served, valkey: Running, call: httpx.Client) -> None:
    answer = httpx.get(f"{api.url}{TASKS}")
    problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    headers = {"authorization": f"Bearer {new_token(valkey.url, '--expires', '1s')}"}
    began = time.monotonic()
    while (answer := call.get(TASKS, headers=headers)).status_code == 200:
        assert time.monotonic() - began < 10
        time.sleep(0.1)
    problem(answer, 401, "unauthorized")


def test_403_without_the_scope(valkey: Running, call: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {new_token(valkey.url, '--scopes', 'read')}"}
    problem(call.post(TASKS, json={"task": "a"}, headers=headers), 403, "forbidden")
    problem(call.get(TASKS, headers={"host": "evil.example"}), 403, "forbidden")
    site = {"sec-fetch-site": "cross-site"}
    problem(call.post(TASKS, json={"task": "a"}, headers=site), 403, "forbidden")


def test_404_for_what_is_not_there(call: httpx.Client) -> None:
    paths = ("tasks/none", "queues/none", "schedules/none", "flows/none", "workers/none", "none")
    for path in paths:
        problem(call.get(f"/api/v1/{path}"), 404, "not-found")
    problem(call.get("/none"), 404, "not-found")


def test_405_says_what_is_allowed(call: httpx.Client) -> None:
    answer = call.put(TASKS, json={})
    problem(answer, 405, "method-not-allowed")
    assert {"GET", "POST"} <= set(answer.headers["allow"].replace(" ", "").split(","))
    problem(call.post("/livez"), 405, "method-not-allowed")


def test_409_for_what_does_not_fit(call: httpx.Client) -> None:
    assert call.post(TASKS, json={"task": "a", "id": "once", "args": [1]}).status_code == 201
    assert call.post(TASKS, json={"task": "a", "id": "once", "args": [1]}).status_code == 200
    other = call.post(TASKS, json={"task": "a", "id": "once", "args": [2]})
    assert problem(other, 409, "conflict")["ids"] == ["default:once"]
    problem(call.post(f"{TASKS}/once/retry"), 409, "conflict")


def test_413_for_what_is_too_large(call: httpx.Client) -> None:
    large = {"task": "a", "args": ["x" * 3_000_000]}
    problem(call.post(TASKS, json=large), 413, "too-large")
    many = [{"task": "a"}] * 5_001
    problem(call.post(f"{TASKS}/batch", json=many), 413, "too-large")
    deep = b'{"task": "a", "args": ' + b"[" * 100 + b"]" * 100 + b"}"
    answer = call.post(TASKS, content=deep, headers={"content-type": "application/json"})
    assert answer.status_code in (413, 422), answer.text


def test_415_for_other_bodies(call: httpx.Client) -> None:
    data = b'{"task": "a"}'
    for headers in (
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/json", "content-encoding": "br"},
    ):
        body = gzip.compress(data) if "gzip" in headers.values() else data
        problem(call.post(TASKS, content=body, headers=headers), 415, "unsupported-media-type")


def test_422_names_field_value_and_rule(call: httpx.Client) -> None:
    before = call.get("/api/v1/stats").json()["queues"]
    for body, field, value in (
        ({"task": "a", "queue": "a b"}, "queue", "a b"),
        ({"task": "a", "priority": "urgent"}, "priority", "urgent"),
        ({"task": "a", "delay": "soon"}, "delay", "soon"),
        ({"task": "a", "delay": -1}, "delay", "-1"),
        ({"task": "a", "surprise": 1}, "surprise", "surprise"),
    ):
        said = problem(call.post(TASKS, json=body), 422, "invalid")
        assert (said["field"], said["value"]) == (field, value)
        assert said["rule"]
    said = problem(call.get(TASKS, params={"limit": 100_000}), 422, "invalid")
    assert (said["field"], said["value"]) == ("limit", "100000")
    assert call.get("/api/v1/stats").json()["queues"] == before


def test_429_when_a_queue_or_a_tenant_is_full(call: httpx.Client) -> None:
    for path, body in (
        ("/api/v1/queues/full", {"max_waiting": 1}),
        ("/api/v1/queues/shared", {"max_tenant_waiting": 1}),
    ):
        assert call.patch(path, json=body).status_code == 200
        new = {"task": "a", "queue": path.rpartition("/")[2]}
        assert call.post(TASKS, json=new).status_code == 201
        answer = call.post(TASKS, json=new)
        said = problem(answer, 429, "queue-full")
        assert int(answer.headers["retry-after"]) >= 1
        assert (said["field"], said["rule"]) == (next(iter(body)), "1")


def test_429_for_a_token_that_asks_too_often(valkey: Running, call: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {new_token(valkey.url, '--rate', '1')}"}
    answers = [call.get(TASKS, headers=headers) for _ in range(30)]
    answer = next(each for each in answers if each.status_code != 200)
    problem(answer, 429, "too-many-requests")
    assert int(answer.headers["retry-after"]) >= 1
    assert call.get(TASKS).status_code == 200  # others are not kept from it


def calls_of(client: httpx.Client) -> list[tuple[str, Callable[[], httpx.Response]]]:
    """One call of each kind."""
    return [
        ("submit", lambda: client.post(TASKS, json={"task": "a"})),
        ("batch", lambda: client.post(f"{TASKS}/batch", json=[{"task": "a"}])),
        ("list", lambda: client.get(TASKS)),
        ("one", lambda: client.get(f"{TASKS}/once")),
        ("poll", lambda: client.get(f"{TASKS}/once/result?wait=30")),
        ("act", lambda: client.post(f"{TASKS}/act", json={"action": "cancel", "all": True})),
        ("queues", lambda: client.get("/api/v1/queues")),
        ("patch", lambda: client.patch("/api/v1/queues/q", json={"max_waiting": 5})),
        ("tenants", lambda: client.get("/api/v1/tenants")),
        ("schedules", lambda: client.get("/api/v1/schedules")),
        ("workers", lambda: client.get("/api/v1/workers")),
        ("dead", lambda: client.get("/api/v1/dead-letters")),
        ("stats", lambda: client.get("/api/v1/stats")),
        ("autoscale", lambda: client.get("/api/v1/autoscale")),
        ("ready", lambda: client.get("/readyz")),
    ]


def timed(named: tuple[str, Callable[[], httpx.Response]]) -> tuple[str, httpx.Response, float]:
    """Make a call, and see how long it takes."""
    name, call = named
    began = time.monotonic()
    answer = call()
    return name, answer, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("kind", ["frozen", "gone"])
def test_503_within_two_seconds_and_all_is_well_when_it_is_back(kind: str) -> None:
    with server(aof=True) as broker, served("--url", broker.url) as api:
        headers = {"authorization": f"Bearer {new_token(broker.url)}"}
        with httpx.Client(base_url=api.url, headers=headers, timeout=30) as client:
            assert client.post(TASKS, json={"task": "a", "id": "once"}).status_code == 201
            for name, call in calls_of(client):
                assert name == "poll" or call().status_code < 500, name
            if kind == "frozen":
                broker.pause()
            else:
                broker.kill()
            began = time.monotonic()
            while client.get("/readyz").status_code == 200:  # as it was a second ago
                assert time.monotonic() - began < 4
            for _ in range(2):  # what is remembered of the token runs out meanwhile
                with ThreadPoolExecutor(20) as pool:
                    found = list(pool.map(timed, calls_of(client)))
                for name, answer, took in found:
                    assert answer.status_code == 503, (name, answer.text)
                    assert answer.headers["content-type"] == "application/problem+json"
                    after = int(answer.headers.get("retry-after", 0))
                    assert 1 <= after <= 60, (name, answer.text)
                    assert took < 3.0, name  # two, and a busy machine
            assert client.get("/livez").status_code == 200
            if kind == "frozen":
                broker.resume()
            else:
                broker.start()
            began = time.monotonic()
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() - began < 15
            for name, call in calls_of(client):
                if name != "poll":
                    assert call().status_code < 500, name
