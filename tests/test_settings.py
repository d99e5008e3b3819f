"""What the program does not say itself: the environment does, then ``fairlead.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, InvalidInput, InvalidOption
from fairlead.settings import (
    Configured,
    FallbackSettings,
    Settings,
    SpoolSettings,
    configured,
    configured_fallback,
    load,
)
from fairlead.settings.keys import KEYS


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key in KEYS.values():
        monkeypatch.delenv(key.variable, raising=False)
    monkeypatch.chdir(tmp_path)


def write(text: str | bytes) -> None:
    Path("fairlead.toml").write_bytes(text if isinstance(text, bytes) else text.encode())


def test_nothing_says_so() -> None:
    assert configured() == Configured()
    write("# only a comment\n")
    assert configured() == Configured()


def test_the_file_says_so() -> None:
    write('url = "redis://host/2"\n')
    assert configured().url == "redis://host/2"


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://file"\n')
    monkeypatch.setenv("FAIRLEAD_URL", "redis://environment")
    assert configured().url == "redis://environment"
    monkeypatch.setenv("FAIRLEAD_URL", "  ")
    assert configured().url == "redis://file"


def test_it_is_known_who_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://file"\n[shards]\nmail = "m"\n')
    file = str(Path("fairlead.toml").absolute())
    assert configured() == Configured("redis://file", file, {"mail": "m"})
    monkeypatch.setenv("FAIRLEAD_URL", "redis://environment")
    assert configured() == Configured("redis://environment", "FAIRLEAD_URL", {"mail": "m"})


def test_only_the_working_directory_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://host"\n')
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert configured() == Configured()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ulr = "redis://host"', r"the key 'ulr'.*did you mean url\?"),
        ("concurrency = 5", r"'concurrency'.*options of commands stand in \[api\] or \[worker\]"),
        ('url = "redis://host"\nshards = 3', r"no table of texts as shards; write \[shards\]"),
        ("[shards]\nmail = 3", "no table of texts as shards"),
        (
            "[broker]\nurl = 5",
            "the key 'broker'.*it may have api, fallback, .*, tenants, timeout, url, worker",
        ),
        ("url = 5", "has int as url; write a URL"),
        ('url = ""', "has an empty text as url"),
        ("url = redis://host", r"is not TOML .*a line of it looks like"),
        (b'url = "\xff"', "cannot be read .*readable text"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_to_do(text: str | bytes, words: str) -> None:
    write(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        configured()
    assert str(Path("fairlead.toml").absolute()) in str(caught.value)


def test_what_cannot_be_read_is_not_taken_for_missing() -> None:
    Path("fairlead.toml").mkdir()
    with pytest.raises(InvalidInput, match="cannot be read"):
        configured()


def test_the_time_of_a_call_is_said_by_argument_url_environment_or_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limit(url: str = "memory://", **options: Any) -> float:
        return Fairlead(url, **options)._clients.limit

    assert limit() == 10.0
    write('timeout = "4s"')
    assert limit() == 4.0
    monkeypatch.setenv("FAIRLEAD_TIMEOUT", "3")
    assert limit() == 3.0
    assert limit("memory://?timeout=250ms") == 0.25
    assert limit("memory://?timeout=250ms", timeout="1m") == 60.0
    for wrong in ("soon", "0", "-1", "nan"):
        with pytest.raises(InvalidOption, match="timeout"):
            limit(f"memory://?timeout={wrong}")
    write("timeout = true")
    monkeypatch.delenv("FAIRLEAD_TIMEOUT")
    with pytest.raises(InvalidInput, match="as timeout; write a duration"):
        limit()


@pytest.mark.parametrize("text", ["soon", "0", "0.0001s"])
def test_a_wrong_time_limit_is_named_by_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    write(f'timeout = "{text}"')
    with pytest.raises(InvalidInput, match=rf"fairlead\.toml' has '{text}' as timeout"):
        Fairlead("memory://")
    monkeypatch.setenv("FAIRLEAD_TIMEOUT", text)
    with pytest.raises(InvalidInput, match=rf"FAIRLEAD_TIMEOUT is '{text}'; make it from 0\.001"):
        Fairlead("memory://")


def test_a_program_that_names_its_broker_does_not_depend_on_the_rest_of_the_file() -> None:
    write('timeout = "4s"\nurl = 5\nlater = "a key of a later release"\n')
    assert Fairlead("memory://")._clients.limit == 4.0
    with pytest.raises(InvalidInput, match="has int as url"):
        Fairlead()
    write('later = "a key of a later release"\n')
    with pytest.raises(InvalidInput, match="the key 'later', which Fairlead does not know"):
        Fairlead()


def test_shards_of_the_file_count_also_if_nobody_names_a_broker() -> None:
    write('[shards]\nmail = "m"\n')
    assert configured() == Configured(shards={"mail": "m"})
    assert Fairlead()._url == "embedded://?shards=mail=m"


# -- one rule for all of them -------------------------------------------------------------------


def test_arguments_go_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(
        'fallback = "spool"\nrequire_url = true\nlocal_queues = ["a", "b"]\n'
        '[spool]\ndirectory = "of-file"\nmax_bytes = "5MiB"\nmax_count = 7\nmax_age = "1h"\n'
    )
    file = str(Path("fairlead.toml").absolute())
    found = load()
    assert found.spool == SpoolSettings(
        directory="of-file", max_bytes=5 * 1024**2, max_count=7, max_age=3600.0
    )
    assert (found.fallback, found.require_url, found.local_queues) == ("spool", True, ("a", "b"))
    assert (found.sources["spool.max_bytes"], found.sources["url"]) == (file, "default")
    for name, value in (
        ("FAIRLEAD_FALLBACK", "local"),
        ("FAIRLEAD_SPOOL", "of-environment"),
        ("FAIRLEAD_SPOOL_MAX_BYTES", "6MB"),
        ("FAIRLEAD_SPOOL_MAX_COUNT", "9"),
        ("FAIRLEAD_SPOOL_MAX_AGE", "30"),
        ("FAIRLEAD_LOCAL_QUEUES", "c, d"),
        ("FAIRLEAD_LOCAL_CONCURRENCY", "8"),
        ("FAIRLEAD_REQUIRE_URL", "0"),
        ("FAIRLEAD_SHARDS", "mail=m bulk=b"),
    ):
        monkeypatch.setenv(name, value)
    found = load(arguments={"url": "redis://said", "spool.max_count": 11, "timeout": None})
    assert found.spool == SpoolSettings(
        directory="of-environment", max_bytes=6 * 1024**2, max_count=11, max_age=30.0
    )
    assert (found.fallback, found.require_url, found.local_queues) == ("local", False, ("c", "d"))
    assert found.local_concurrency == 8
    assert (found.url, found.shards) == ("redis://said", {"mail": "m", "bulk": "b"})
    assert found.sources["spool.max_count"] == found.sources["url"] == "argument"
    assert found.sources["spool.directory"] == "FAIRLEAD_SPOOL"
    assert found.sources["timeout"] == "default"


def test_nothing_said_is_no_fallback() -> None:
    assert configured_fallback() == FallbackSettings()
    assert configured_fallback().fallback == "none"
    assert load() == Settings(sources=dict.fromkeys(KEYS, "default"))


def test_a_program_without_a_fallback_does_not_depend_on_the_spool_of_the_file() -> None:
    write('[spool]\nmax_bytes = "much"\n')
    assert configured_fallback().fallback == "none"
    Fairlead("memory://")
    with pytest.raises(InvalidInput, match=r"'much' as spool.max_bytes; write at least 4 MB"):
        configured_fallback("spool")


def test_the_arguments_of_a_fallback_go_first_and_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAIRLEAD_FALLBACK", "local")
    monkeypatch.setenv("FAIRLEAD_LOCAL_QUEUES", "mail")
    assert configured_fallback().local_queues == ("mail",)
    assert configured_fallback("spool", tmp_path).spool.directory == str(tmp_path)
    assert configured_fallback("spool").local_queues == ()
    assert configured_fallback("none").fallback == "none"
    assert configured_fallback(local_queues=["a"]).local_queues == ("a",)
    with pytest.raises(InvalidOption, match=r"fallback='memory' .*one of none, spool, local"):
        configured_fallback("memory")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FAIRLEAD_FALLBACK", "memory"),
        ("FAIRLEAD_SPOOL_MAX_BYTES", "0"),
        ("FAIRLEAD_SPOOL_MAX_BYTES", "4095KiB"),
        ("FAIRLEAD_SPOOL_MAX_BYTES", "5TB"),
        ("FAIRLEAD_SPOOL_MAX_COUNT", "-1"),
        ("FAIRLEAD_SPOOL_MAX_COUNT", "many"),
        ("FAIRLEAD_SPOOL_MAX_AGE", "old"),
        ("FAIRLEAD_LOCAL_QUEUES", "a b!"),
        ("FAIRLEAD_LOCAL_CONCURRENCY", "0"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value_and_the_rule(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidInput, match=rf"{variable} is '{text}'; make it "):
        load()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('fallback = "memory"', "'memory' as fallback; write one of none, spool, local"),
        ("require_url = 1", "1 as require_url; write true or false"),
        ('local_queues = "mail"', r"'mail' as local_queues; write a list of names of queues"),
        ("spool = 5", r"no table as spool; write \[spool\]"),
        ("[spool]\nmax_count = true", "True as spool.max_count; write a whole number"),
        ('[spool]\ndirectory = ""', "'' as spool.directory; write the path of a directory"),
        ("[spool]\nmax_cuont = 5", r"'max_cuont' in \[spool\].*did you mean max_count\?"),
        ("[spool]\ncolor = 5", r"'color' in \[spool\].*it may have directory, max_age, max_bytes"),
        ("[spol]\nmax_count = 5", r"the key 'spol'.*did you mean spool\?"),
    ],
)
def test_a_wrong_key_of_the_file_is_named_with_what_to_write(text: str, words: str) -> None:
    write(text)
    with pytest.raises(InvalidInput, match=words):
        configured()


def test_a_variable_with_a_slip_of_the_pen_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fairlead.settings.sources._told", set())
    monkeypatch.setenv("FAIRLEAD_FALBACK", "spool")
    monkeypatch.setenv("FAIRLEAD_ULR", "redis://user:hunter2@host")
    for own in ("EXAMPLES", "TEST_URL", "API_HOST", "APP", "API_SERVICE_PORT", "DEBUG", "HOST"):
        monkeypatch.setenv(f"FAIRLEAD_{own}", "1")
    Fairlead("memory://")
    Fairlead("memory://")
    assert [record.getMessage() for record in caplog.records] == [
        "FAIRLEAD_FALBACK is set, which Fairlead does not know: meant is FAIRLEAD_FALLBACK?",
        "FAIRLEAD_ULR is set, which Fairlead does not know: meant is FAIRLEAD_URL?",
    ]
