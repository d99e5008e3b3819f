"""``fairlead api``: what it refuses before it listens."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator

import httpx
import pytest

from fairlead.cli.main import cli, run
from tests.api.serving import new_token, served
from tests.cli.running import fairlead
from tests.support.servers import Running, server


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


def test_it_does_not_listen_to_others_without_a_token(valkey: Running) -> None:
    answer = fairlead("api", "--host", "0.0.0.0", "--port", "0", "--url", valkey.url)
    assert answer.returncode == 2
    assert "fairlead token create" in answer.stderr
    assert "listening" not in answer.stderr
    new_token(valkey.url)
    with served("--host", "0.0.0.0", "--url", valkey.url) as api:
        port = api.port
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/api/v1/tasks").status_code == 401


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--open-to-loopback", "--host", "0.0.0.0"), "of this machine"),
        (("--open-to-loopback", "--host", "::"), "of this machine"),
        (("--url", "memory://"), "memory://"),
        (("tests.nothing:app",), "no module"),
        (("tests.nothing:app", "--url", "redis://localhost"), "leave --url out"),
        (("--host", "not.a.name.invalid", "--open-to-loopback"), "of this machine"),
    ],
)
def test_wrong_usage_is_told(
    args: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = () if "--url" in args or ":app" in args[0] else ("--url", "redis://127.0.0.1:9")
    assert run(cli, ["api", "--port", "0", *args, *url]) == 2
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(cli, ["api", "--url", "redis://127.0.0.1:9", "--port", port]) == 2
        assert "cannot listen" in capsys.readouterr().err


def test_a_missing_library_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fairlead.api.serve", raising=False)
    monkeypatch.delitem(sys.modules, "fairlead.api.http.header_limits", raising=False)
    assert run(cli, ["api", "--url", "redis://127.0.0.1:9"]) == 2
    assert 'pip install "fairlead[server]"' in capsys.readouterr().err


def test_the_description_is_printed_without_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["api", "--print-openapi"]) == 0
    assert json.loads(capsys.readouterr().out)["openapi"] == "3.1.0"
