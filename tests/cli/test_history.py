"""``fairlead history`` and ``fairlead task history``: as people see them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from fairlead import Fairlead, Reject
from fairlead.cli.main import cli
from fairlead.ledger.ledger import Ledger
from fairlead.manager.counts import Counts
from fairlead.manager.recorder import Recorder
from fairlead.model.errors import Unreachable
from tests.cli.running import fairlead
from tests.support.servers import shared

TERM = 5


async def recorded(app: Fairlead, ledger: Ledger) -> str:
    """Run a task that fails, and let it be recorded; its id."""

    @app.task(name="badly")
    async def badly() -> None:
        raise Reject("it is of no use")

    handle = await badly.using(tenant="acme").aenqueue()
    await app.drain()
    await ledger.take_leadership(term=TERM, holder="test")
    term = cast(Any, SimpleNamespace(number=TERM))
    await Recorder(app._clients.store, ledger, term, Counts("recorder")).catch_up()
    return handle.id


async def test_the_ledger_tells_of_tasks(ledger: Ledger, ledger_dsn: str) -> None:
    async with Fairlead("memory://") as app:
        id = await recorded(app, ledger)
    # No broker is named: what the ledger has can be read without one.
    kept: dict[str, Any] = {"FAIRLEAD_LEDGER": ledger_dsn, "FAIRLEAD_URL": ""}
    listed = fairlead("history", "--state", "dead", "--error", "reject", "--since", "1h", **kept)
    assert listed.returncode == 0, listed.stderr
    assert listed.stderr == ""
    head, line = listed.stdout.splitlines()
    assert head.split() == ["ENQUEUED", "STATE", "TASK", "QUEUE", "TENANT", "ATTEMPTS", "ID", "WHY"]
    assert line.split()[1:] == [
        "dead", "badly", "default", "acme", "1", id, "Reject:", "it", "is", "of", "no", "use",
    ]  # fmt: skip
    shown = fairlead("task", "history", id, "--json", **kept)
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert (told["source"], told["attempts"][0]["error_type"]) == ("ledger", "Reject")
    assert [change["kind"] for change in told["changes"]] == ["enqueued", "started", "dead"]


def invoked(*args: str) -> Any:
    return CliRunner().invoke(cli, list(args))


def test_without_a_ledger_the_broker_answers_and_it_is_said() -> None:
    with shared() as server:
        app = Fairlead(server.url)
        task = app.task(name="mail")(_mail)
        ids = [task.using(tenant=tenant).enqueue().id for tenant in ("acme", "globex")]
        app.close()
        page = invoked("history", "--tenant", "acme", "--url", server.url, "--json")
        found = json.loads(page.stdout)
        assert (found["source"], [each["id"] for each in found["tasks"]]) == ("broker", ids[:1])
        listed = invoked("history", "--url", server.url, "--limit", "1")
        assert "the broker still keeps" in listed.output
        assert "there are more than 1" in listed.output
        shown = invoked("task", "history", ids[1], "--url", server.url)
        assert shown.exit_code == 0
        assert "enqueued" in shown.output
        missing = invoked("task", "history", ids[1], "--tenant", "acme", "--url", server.url)
        assert "is not known" in missing.output


def _mail() -> None: ...


def test_a_moment_that_is_none_is_refused() -> None:
    refused = invoked("history", "--since", "yesterday", "--url", "redis://127.0.0.1:1")
    assert refused.exit_code == 2
    assert "yesterday" in refused.output
    with pytest.raises(Unreachable):
        invoked_raising("history", "--since", "2026-11-17T08:00:00Z")


def invoked_raising(*args: str) -> None:
    url = ("--url", "redis://127.0.0.1:1?timeout=1")
    CliRunner().invoke(cli, [*args, *url], catch_exceptions=False)
