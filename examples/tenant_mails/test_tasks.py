from __future__ import annotations

import pytest

from fairlead import Fairlead, Reject
from fairlead.testing import Kit
from tenant_mails.tasks import app, newsletter, send, sent


@pytest.fixture
def fairlead_target() -> Fairlead:
    sent.clear()
    return app


def test_a_large_newsletter_does_not_hold_up_other_companies(fairlead_kit: Kit) -> None:
    newsletter("bulk", 1, (f"reader-{n}@example.org" for n in range(200)), "news")
    send.using(tenant="small").enqueue("ada@example.org", "your password")
    fairlead_kit.drain()
    assert len(sent) == 201
    assert sent.index(("small", "ada@example.org")) < 20


def test_weights_share_the_workers(fairlead_kit: Kit) -> None:
    for company in ("acme", "tin"):
        newsletter(company, 1, (f"{n}@example.org" for n in range(100)), "news")
    fairlead_kit.drain()
    first = [company for company, _ in sent[:80]]
    assert 50 <= first.count("acme") <= 70


def test_a_newsletter_that_is_enqueued_twice_reaches_nobody_twice(fairlead_kit: Kit) -> None:
    for _ in range(2):
        newsletter("acme", 7, ["ada@example.org", "bob@example.org"], "news")
    assert fairlead_kit.drain() == 2


def test_what_is_no_address_is_rejected(fairlead_kit: Kit) -> None:
    handle = send.enqueue("nobody", "hello")
    with pytest.raises(Reject, match="no address"):
        fairlead_kit.drain()
    assert handle.info().reason == "rejected"
