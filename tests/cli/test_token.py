"""``fairlead token``: made, listed and revoked, without ever showing a secret twice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fairlead.cli.main import cli, run
from fairlead.client import Client
from fairlead.model.errors import Unreachable
from tests.support.servers import Running, server


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


def test_a_token_is_made_listed_and_revoked(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*args: str, code: int = 0) -> tuple[str, str]:
        assert run(cli, ["token", *args, "--url", valkey.url]) == code
        return capsys.readouterr()

    out, err = said(
        "create",
        "--scopes",
        "submit,read",
        "--name",
        "shop",
        "--tenant",
        "acme",
        "--expires",
        "30d",
    )
    text = out.strip()
    _, id, secret = text.split("_", 2)
    assert secret not in err
    (token,) = json.loads(said("list", "--json")[0])["tokens"]
    assert (token["id"], token["name"], token["tenant"]) == (id, "shop", "acme")
    assert token["scopes"] == ["read", "submit"]
    assert token["expires_at"] - token["created_at"] == pytest.approx(30 * 86_400)
    assert token["used_at"] is None
    assert "hash" not in token
    shown = said("list")[0]
    assert "shop" in shown
    assert secret not in shown
    assert secret not in said("revoke", text)[1]  # the whole one will do
    assert json.loads(said("revoke", id, "--json", code=1)[0])["revoked"] is False


@pytest.mark.parametrize(
    "args",
    [
        ("create",),
        ("create", "--scopes", ""),
        ("create", "--scopes", "all"),
        ("create", "--scopes", "read", "--expires", "soon"),
        ("create", "--scopes", "read", "--tenant", ""),
    ],
)
def test_wrong_usage_makes_no_token(
    valkey: Running, args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["token", *args, "--url", valkey.url]) == 2
    assert capsys.readouterr().out == ""


def test_a_token_is_shown_even_if_the_audit_trail_cannot_be_written(
    valkey: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: object) -> None:
        raise Unreachable("it has just gone")

    monkeypatch.setattr(Client, "note", away)
    assert run(cli, ["token", "create", "--scopes", "read", "--url", valkey.url]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("fl_")
    assert "missing in the audit trail" in err
    id = out.split("_")[1]
    assert run(cli, ["token", "revoke", id, "--url", valkey.url]) == 0
