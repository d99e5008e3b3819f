"""Task types: what workers publish of their tasks."""

from __future__ import annotations

from fairlead.broker.documents import DocumentChange
from fairlead.client.declaration import declared
from fairlead.model.catalog import KIND, catalog_of, digest_of, encode_catalog
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry, TaskSpec
from tests.api.routes.site import Caller, Site


def send(to: str, *, copies: int = 1) -> None:
    """Send a mail."""


async def publish(s: Site, *specs: TaskSpec, priorities: Priorities | None = None) -> None:
    registry = Registry()
    for spec in specs:
        registry.add(spec)
    data = encode_catalog(catalog_of(registry, priorities or Priorities()))
    change = DocumentChange(kind=KIND, name=digest_of(data), value=data)
    await s.store.write_documents(s.call_id(), [change])


async def test_task_types_come_with_their_schemas(s: Site, operator: Caller) -> None:
    await publish(s, TaskSpec("mail.send", send, version=2), TaskSpec("a", lambda: None))
    await s.worker("w", tasks=("mail.send",))
    found = await operator.get("/task-types")
    assert [each["name"] for each in found["task_types"]] == ["a", "mail.send"]
    mail = found["task_types"][1]
    assert (mail["version"], mail["summary"], mail["workers"]) == (2, "Send a mail.", 1)
    assert [(each["name"], each["required"]) for each in mail["parameters"]] == [
        ("to", True),
        ("copies", False),
    ]
    assert mail["parameters"][0]["schema"] == {"type": "string"}
    assert await operator.get("/task-types/mail.send") == mail
    await operator.problem(404, "GET", "/task-types/nothing")
    first = await operator.get("/task-types", limit=1)
    assert first["cursor"] == "a"


async def test_priorities_go_by_the_labels_of_their_app(s: Site, operator: Caller) -> None:
    own = Priorities({"fast": 0, "slow": 9})
    slow = declared(send, {"name": "report", "priority": 9}, own, None)
    await publish(s, TaskSpec("mail.send", send), slow, priorities=own)
    found = (await operator.get("/task-types"))["task_types"]
    assert [each["priority"] for each in found] == ["normal", "slow"]


async def test_tenants_see_types_but_not_who_runs_them(s: Site, acme: Caller) -> None:
    await publish(s, TaskSpec("mail.send", send))
    await s.worker("w", tasks=("mail.send",))
    (mail,) = (await acme.get("/task-types"))["task_types"]
    assert (mail["workers"], mail["limiters"]) == (None, [])
