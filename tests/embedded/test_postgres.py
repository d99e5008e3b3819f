"""The embedded PostgreSQL: shared, adopted, started again, run by another account than root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest

from fairlead.embedded import postgres_server
from fairlead.embedded.postgres import EmbeddedPostgres
from fairlead.ledger.ledger import Ledger
from fairlead.model.errors import InvalidOption, Refused
from tests.support.postgres import passable_folder as folder

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as somebody else")

_HOLD = """
import sys
from fairlead.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(sys.argv[1], fsync=False, dies_with_owner=sys.argv[2] == "dies")
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    """Where the files of a server were made: a second or two, once for all tests."""
    path = folder()
    server = EmbeddedPostgres(path, fsync=False, dies_with_owner=True)
    server.start()
    server.stop()
    yield path
    shutil.rmtree(path)


def ask(dsn: str, text: str) -> object:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(text)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


def ends(pid: int) -> bool:
    return waits(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def waits(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_the_last_one_out_stops_it(path: Path) -> None:
    one, two = (EmbeddedPostgres(path, fsync=False) for _ in range(2))
    dsn = one.start()
    assert two.start() == dsn
    assert one.pid == two.pid
    ask(dsn, "create table if not exists kept (x int)")
    one.stop()
    one.stop()  # without effect
    assert ask(dsn, "select count(*) from kept") == 0
    pid = two.pid
    busy = psycopg.connect(dsn)
    busy.execute("select 1")  # a client in a transaction does not hold it up
    two.stop()
    assert not is_alive(pid)
    busy.close()
    with EmbeddedPostgres(path, fsync=False) as again:
        assert ask(again, "select count(*) from kept") == 0
        assert ask(again, "show listen_addresses") == ""
        assert ask(again, "show fsync") == "off"


@pytest.mark.parametrize("way", ["stays", "dies"])
def test_a_killed_owner_leaves_a_server_that_the_next_adopts_unless_it_dies_with_it(
    path: Path, way: str
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _HOLD, path, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait(30)
    owner.stdin.close()
    owner.stdout.close()
    if way == "dies":
        assert ends(pid)
    server = EmbeddedPostgres(path, fsync=False)
    try:
        server.start()
        assert (server.pid == pid) == (way == "stays")
    finally:
        server.stop()
    assert ends(pid)


def test_a_killed_server_is_started_again_with_its_data(path: Path) -> None:
    server = EmbeddedPostgres(path, fsync=False)
    dsn = server.start()
    try:
        ask(dsn, "create table if not exists kept (x int)")
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        assert ends(pid)
        assert server.start() == dsn
        assert server.pid != pid
        assert ask(dsn, "select count(*) from kept") == 0
    finally:
        server.stop()


def test_a_long_path_has_its_socket_elsewhere(path: Path) -> None:
    top = folder()
    top.chmod(0o755)
    long = top / ("long" * 30)
    (long / "postgres").mkdir(parents=True)
    (path / "postgres/data").rename(long / "postgres/data")
    server = EmbeddedPostgres(long, fsync=False)
    try:
        dsn = server.start()
        sockets = Path(unquote(dsn.partition("host=")[2]))
        assert not sockets.is_relative_to(top)
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert ask(dsn, "select 1") == 1
        server.stop()
        assert not sockets.exists()
    finally:
        server.stop()
        (long / "postgres/data").rename(path / "postgres/data")
        shutil.rmtree(top)


@root_only
def test_as_root_another_account_runs_it_and_only_that_can_enter(path: Path) -> None:
    account = postgres_server.service_account()
    assert account is not None
    with EmbeddedPostgres(path, fsync=False) as dsn:
        pid = EmbeddedPostgres(path).pid
        assert Path(f"/proc/{pid}").stat().st_uid == account.uid != 0
        kept = (path / "postgres").stat()
        assert (kept.st_uid, kept.st_mode & 0o777) == (account.uid, 0o700)
        assert "Groups:\t\n" in Path(f"/proc/{pid}/status").read_text().replace(" ", "")
        assert ask(dsn, "select current_user") == "fairlead"


@root_only
def test_a_way_that_the_account_cannot_pass_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(Refused, match=r"may not pass .*chmod o\+x"):
        EmbeddedPostgres(closed / "below" / "path", fsync=False).start()


@root_only
def test_programs_that_the_account_cannot_run_are_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder()  # as a virtual environment in the home of root is
    (closed / "pginstall").symlink_to(postgres_server.find_programs().parent)
    monkeypatch.setattr(postgres_server, "find_programs", lambda: closed / "pginstall/bin")
    server = EmbeddedPostgres(path, fsync=False)
    try:
        assert ask(server.start(), "select 1") == 1
        program = Path(f"/proc/{server.pid}/exe").readlink()
        assert program.is_relative_to(path / "postgres")
    finally:
        server.stop()
        shutil.rmtree(closed)


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = folder()
    (path / "postgres").symlink_to(tmp_path)
    with pytest.raises(Refused, match="no directory, or another user's"):
        EmbeddedPostgres(path, fsync=False).start()
    shutil.rmtree(path)


def test_a_server_that_cannot_start_repeats_its_log(path: Path) -> None:
    version = path / "postgres/data/PG_VERSION"
    right = version.read_text()
    version.write_text("9.6\n")
    try:
        with pytest.raises(Refused, match=r"(?s)ended while it started.*9\.6"):
            EmbeddedPostgres(path, fsync=False).start()
    finally:
        version.write_text(right)


def test_where_there_is_no_program_it_says_how_to_get_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "_bundled", list)
    monkeypatch.setattr(postgres_server, "_on_path", list)
    monkeypatch.setattr(postgres_server, "_DEBIAN", path)
    with pytest.raises(Refused, match=r"fairlead\[embedded\]"):
        EmbeddedPostgres(path, fsync=False).start()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidOption, match="path"):
        EmbeddedPostgres("")
    with pytest.raises(InvalidOption, match="start_timeout"):
        EmbeddedPostgres("x", start_timeout=0)


async def test_a_ledger_of_ones_own_is_migrated_by_itself(path: Path) -> None:
    async with Ledger(f"embedded://{path}") as ledger:
        await ledger.take_leadership(term=3, holder="x")
        pid = EmbeddedPostgres(path).pid
        assert is_alive(pid)
    assert not is_alive(pid)
    async with Ledger(f"embedded://{path}") as ledger:
        assert (await ledger.leadership()).term == 3
