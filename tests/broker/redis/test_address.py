"""URLs are taken apart, and never shown with their secrets."""

import pytest

from fairlead.broker.redis.address import Address, Login, Place, Tls, parse
from fairlead.model.errors import InvalidOption


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", Address(kind="fixed", places=(Place("localhost", 6379),))),
        ("valkey://h:7000/3", Address(kind="fixed", places=(Place("h", 7000),), db=3)),
        (
            "redis://ann:p%40ss%3Aword@[::1]:6380/0",
            Address(kind="fixed", places=(Place("::1", 6380),), login=Login("ann", "p@ss:word")),
        ),
        (
            "redis://:secret@h",
            Address(kind="fixed", places=(Place("h", 6379),), login=Login(None, "secret")),
        ),
        (
            "rediss://h?ca=/etc/ca.pem&cert=c.pem&key=k.pem",
            Address(
                kind="fixed",
                places=(Place("h", 6379),),
                tls=Tls(ca="/etc/ca.pem", cert="c.pem", key="k.pem"),
            ),
        ),
        (
            "valkeys://h?verify=0",
            Address(kind="fixed", places=(Place("h", 6379),), tls=Tls(verify=False)),
        ),
        (
            "unix://ann:pw@/run/valkey.sock?db=2",
            Address(
                kind="unix",
                places=(Place(path="/run/valkey.sock"),),
                login=Login("ann", "pw"),
                db=2,
            ),
        ),
        (
            "redis+sentinel://ann:pw@a,b:26380/main/1?sentinel_password=spw",
            Address(
                kind="sentinel",
                places=(Place("a", 26379), Place("b", 26380)),
                login=Login("ann", "pw"),
                db=1,
                service="main",
                sentinel_login=Login(None, "spw"),
            ),
        ),
        (
            "rediss+cluster://a:1,b:2",
            Address(kind="cluster", places=(Place("a", 1), Place("b", 2)), tls=Tls()),
        ),
    ],
)
def test_a_url_is_taken_apart(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "shown", "rule"),
    [
        ("http://h", "http://h", "starts with one of redis://"),
        ("secret@h", "…", "starts with one of redis://"),
        ("redis://h:0", "redis://h:0", "ports are from 1 to 65535"),
        ("redis://h:x", "redis://h:x", "hosts look like"),
        ("redis://:secret@", "redis://…", "hosts look like"),
        ("redis://:se/cret@h", "", ""),
        ("redis://:se?cret@h", "redis://…", "hosts look like"),
        ("redis://h/x", "redis://h/x", "database is a number"),
        ("redis://a,b", "redis://a,b", "one server"),
        ("redis://h?secret=1", "redis://…", "unknown options (found: secret)"),
        ("redis://h?db=1", "redis://…", "unknown options (found: db)"),
        ("rediss://h?verify=2", "rediss://…", "verify=0 or verify=1"),
        ("rediss://h?key=k", "rediss://…", "gives cert= along with key="),
        ("rediss://h?ca=a&ca=b", "rediss://…", "each option once"),
        ("unix://relative.sock", "unix://relative.sock", "absolute path of a socket"),
        ("redis+sentinel://a", "redis+sentinel://a", "names the service"),
        ("redis+cluster://a/1", "redis+cluster://a/1", "a cluster has only database 0"),
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_secrets(
    url: str, shown: str, rule: str
) -> None:
    if not shown:  # a password may hold a slash: the last @ ends it
        assert parse(url).login == Login(None, "se/cret")
        return

    with pytest.raises(InvalidOption) as caught:
        parse(url)

    assert caught.value.value == shown
    assert rule in caught.value.rule
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:secret@h:1/2",
        "unix://:secret@/s",
        "redis+sentinel://:secret@a/main?sentinel_password=secret",
        "rediss+cluster://:secret@a",
    ],
)
def test_an_address_never_shows_a_password(url: str) -> None:
    address = parse(url)

    assert "secret" not in repr(address)
    assert "secret" not in str(address)


def test_an_address_is_shown_as_a_url() -> None:
    url = "rediss+sentinel://a:1,[::1]:2/main/3"

    assert str(parse(url)) == url
