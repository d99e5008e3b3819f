"""A server that starts by itself, is shared by whoever comes, and outlives what it should."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead.embedded.valkey import EmbeddedValkey
from tests.embedded.processes import client, ended, is_gone, kill, users


def test_it_starts_keeps_data_and_stops(home: Path) -> None:
    server = EmbeddedValkey(home)
    first = server.start()
    assert first.owner
    with client(first) as connection:
        connection.set("key", "value")
    server.stop()
    ended(first.pid)

    with EmbeddedValkey(home) as second, client(second) as connection:
        assert connection.get("key") == b"value"
        assert second.pid != first.pid
    ended(second.pid)


def test_start_and_stop_may_be_repeated(home: Path) -> None:
    server = EmbeddedValkey(home)
    server.stop()
    assert server.start() == server.start() == server.ensure()
    server.stop()
    server.stop()
    with server as endpoint:
        assert client(endpoint).ping()


def test_threads_share_one_start(home: Path) -> None:
    server = EmbeddedValkey(home)
    with ThreadPoolExecutor(8) as pool:
        endpoints = set(pool.map(lambda _: server.start().pid, range(16)))
    assert len(endpoints) == 1
    server.stop()


def test_the_configuration_is_the_promised_one(home: Path) -> None:
    with EmbeddedValkey(home) as endpoint, client(endpoint) as connection:
        wanted = {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "aof-load-truncated": "yes",
            "protected-mode": "yes",
            "daemonize": "no",
            "dir": str(home / "valkey"),
        }
        assert connection.config_get(*wanted) == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_port_is_open_and_no_argument_holds_the_password(home: Path) -> None:
    with EmbeddedValkey(home, dies_with_owner=True) as endpoint:
        process = Path(f"/proc/{endpoint.pid}")
        sockets = {str(fd.readlink()) for fd in (process / "fd").iterdir() if fd.is_socket()}
        listed = [
            f"socket:[{line.split()[9]}]"
            for table in ("tcp", "tcp6")
            for line in Path("/proc/net", table).read_text().splitlines()[1:]
        ]
        assert sockets
        assert not sockets.intersection(listed)
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            assert endpoint.password.encode() not in _read(each)
        assert endpoint.password.encode() not in (process / "environ").read_bytes()


def test_only_this_user_gets_in_and_only_with_the_password(home: Path) -> None:
    with EmbeddedValkey(home) as endpoint:
        folder = home / "valkey"
        assert [_mode(path) for path in (home, folder)] == [0o700, 0o700]
        assert _mode(Path(endpoint.socket)) == 0o600
        assert all(_mode(path) == 0o600 for path in folder.glob("*.*") if path.is_file())
        assert endpoint.password in (folder / "state.json").read_text()
        for password in (None, "wrong"):
            with pytest.raises((redis.AuthenticationError, redis.ResponseError)):
                redis.Redis(
                    unix_socket_path=endpoint.socket, password=password, retry=Retry(NoBackoff(), 0)
                ).ping()
        other = EmbeddedValkey(home)
        (home / "valkey").chmod(0o755)
        other.start()
        assert _mode(home / "valkey") == 0o700
        other.stop()


def test_nothing_shows_the_password(home: Path) -> None:
    server = EmbeddedValkey(home)
    endpoint = server.start()
    shown = [repr(endpoint), str(endpoint), repr(endpoint.__rich_repr__()), repr(server)]
    assert str(endpoint.pid) in shown[0]
    assert not any(endpoint.password in text for text in shown)
    server.stop()
    assert endpoint.password not in (home / "valkey/server.log").read_text()
    assert endpoint.password not in repr(server._directory.state())


def test_others_join_the_server_that_runs(home: Path) -> None:
    first, second = EmbeddedValkey(home), EmbeddedValkey(home)
    mine, same = first.start(), second.start()
    assert (same.pid, same.password, same.socket) == (mine.pid, mine.password, mine.socket)
    assert (mine.owner, same.owner) == (True, False)
    with users(1) as (other,):
        assert other.do(f"start {home}") == (mine.pid, False)
    second.stop()
    first.stop()


def test_of_processes_that_start_together_one_starts_the_server(tmp_path: Path, home: Path) -> None:
    with users(4) as racers:
        for round in range(4):
            path = tmp_path / f"{round}"
            for racer in racers:
                racer.tell(f"start {path}")
            answers = [racer.heard() for racer in racers]
            assert len({pid for pid, _ in answers}) == 1
            assert sum(owner for _, owner in answers) == 1
            assert (path / "valkey/server.log").read_text().count("Ready to accept") == 1
            for racer in racers:
                racer.tell("stop")
            assert {racer.heard()[0] for racer in racers} == {answers[0][0]}
            ended(answers[0][0])


def test_the_last_one_out_stops_it(home: Path) -> None:
    server = EmbeddedValkey(home)
    endpoint = server.start()
    with users(2) as (second, third):
        second.do(f"start {home}")
        third.do(f"start {home}")
        server.stop()
        assert client(endpoint).ping()
        assert second.do("ensure") == (endpoint.pid, True)  # it has become the owner
        second.do("stop")
        assert client(endpoint).ping()
        third.do("stop")
        ended(endpoint.pid)


def test_a_process_that_ends_in_good_order_leaves_nothing_running(home: Path) -> None:
    with users(1) as (user,):
        pid, _ = user.do(f"start {home}")
        assert user.end() == 0
        ended(pid)


def test_a_killed_server_comes_back_with_its_data(home: Path) -> None:
    server, guest = EmbeddedValkey(home, fsync="always"), EmbeddedValkey(home, fsync="always")
    first = server.start()
    guest.start()
    with client(first) as connection:
        connection.rpush("list", *range(1000))
        kill(first.pid)
        second = server.ensure()
        assert second.pid != first.pid
        assert (second.password, second.socket) == (first.password, first.socket)
        assert connection.llen("list") == 1000
        assert guest.ensure().pid == second.pid

        kill(second.pid)
        third = guest.ensure()  # the owner need not do it
        assert not third.owner
        assert connection.llen("list") == 1000
        assert server.ensure().pid == third.pid
    guest.stop()
    assert not is_gone(third.pid)
    server.stop()
    ended(third.pid)


def test_many_who_miss_the_server_start_it_once(home: Path) -> None:
    with users(3) as all_of_them:
        (pid,) = {user.do(f"start {home}")[0] for user in all_of_them}
        kill(pid)
        for user in all_of_them:
            user.tell("ensure")
        (after,) = {user.heard()[0] for user in all_of_them}
        assert after != pid


def test_a_server_whose_owner_was_killed_is_adopted(home: Path) -> None:
    with users(1) as (owner,):
        pid, _ = owner.do(f"start {home}")
        owner.kill()
        with EmbeddedValkey(home) as endpoint:
            assert (endpoint.pid, endpoint.owner) == (pid, True)
            assert client(endpoint).ping()
    ended(pid)


def test_if_both_were_killed_the_next_starts_it_again(home: Path) -> None:
    with users(1) as (owner,):
        pid, _ = owner.do(f"start {home}")
        with EmbeddedValkey(home, fsync="always") as endpoint:
            client(endpoint).set("key", "value")
            os.kill(pid, 9)
            owner.kill()
    with EmbeddedValkey(home) as endpoint:
        assert endpoint.owner
        assert endpoint.pid != pid
        assert client(endpoint).get("key") == b"value"


def test_a_server_may_die_with_its_owner_even_when_that_is_killed(home: Path) -> None:
    with users(1) as (owner,):
        pid, _ = owner.do(f"tied {home}")
        with EmbeddedValkey(home) as endpoint:
            assert endpoint.pid == pid
            client(endpoint).set("key", "value")
            owner.kill()
            ended(pid)
        with EmbeddedValkey(home) as endpoint:
            assert endpoint.owner
            assert client(endpoint).get("key") == b"value"


def test_a_tied_server_ends_with_its_owners_stop_whoever_uses_it(home: Path) -> None:
    owner, guest = EmbeddedValkey(home, dies_with_owner=True), EmbeddedValkey(home)
    endpoint = owner.start()
    guest.start()
    owner.stop()
    ended(endpoint.pid)
    assert guest.ensure().pid != endpoint.pid
    owner.start()
    owner.stop()  # this one was not started there
    assert client(guest.ensure()).ping()
    guest.stop()


def test_a_tied_server_does_not_end_with_the_thread_that_started_it(home: Path) -> None:
    server = EmbeddedValkey(home, dies_with_owner=True)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    endpoint = server.start()
    assert client(endpoint).ping()
    kill(endpoint.pid)
    assert client(server.ensure()).ping()
    server.stop()


@pytest.mark.parametrize("tied", [False, True])
def test_a_forked_child_has_no_part_in_its_parents_use(home: Path, tied: bool) -> None:
    program = f"""
import os, signal, sys
from fairlead.embedded.valkey import EmbeddedValkey

server = EmbeddedValkey({str(home)!r}, dies_with_owner={tied})
mine = server.start()
leave, stay = os.pipe()
child = os.fork()
if child == 0:
    server.stop()  # nothing of its own to stop
    again = server.start()
    assert (again.pid, again.owner) == (mine.pid, False)
    server.stop()
    if os.fork() == 0:  # lives on, and holds nothing
        os.close(stay)
        os.read(leave, 1)
        os._exit(0)
    sys.exit(0)  # runs the exit handlers
assert os.waitpid(child, 0)[1] == 0
assert server.ensure().owner
print(mine.pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.communicate(b"\n")
    if tied:
        ended(pid)
    with EmbeddedValkey(home) as endpoint:
        assert endpoint.owner
        assert (endpoint.pid == pid) is not tied


def test_a_path_too_long_for_a_socket_is_fine(tmp_path: Path) -> None:
    home = tmp_path.joinpath(*["long" * 10] * 4)
    server = EmbeddedValkey(home)
    endpoint = server.start()
    socket = Path(endpoint.socket)
    assert home not in socket.parents
    assert len(endpoint.socket) < 104
    assert _mode(socket.parent) == 0o700
    with users(1) as (other,):
        assert other.do(f"start {home}") == (endpoint.pid, False)
        other.do("stop")
    assert client(endpoint).ping()
    server.stop()
    assert not socket.parent.exists()


def test_any_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = EmbeddedValkey("a \"b\" 'c' \\ ü\n%41")
    with server as endpoint:
        monkeypatch.chdir("/")
        assert client(endpoint).ping()
        assert client(server.ensure()).ping()


def test_always_wins_where_users_disagree_on_fsync(home: Path) -> None:
    def fsync() -> str:
        return str(client(endpoint).config_get("appendfsync")["appendfsync"])

    with EmbeddedValkey(home, fsync="always") as endpoint:
        assert fsync() == "always"
    easy, strict = EmbeddedValkey(home), EmbeddedValkey(home, fsync="always")
    endpoint = easy.start()
    assert fsync() == "everysec"
    strict.start()
    assert fsync() == "always"
    easy.ensure()
    assert fsync() == "always"
    kill(endpoint.pid)
    endpoint = easy.ensure()
    strict.ensure()
    assert fsync() == "always"
    strict.stop()
    easy.stop()


def test_a_log_that_has_grown_is_put_aside(home: Path) -> None:
    with EmbeddedValkey(home):
        pass
    log = home / "valkey/server.log"
    os.truncate(log, 6 * 1024 * 1024)
    with EmbeddedValkey(home):
        assert log.stat().st_size < 100_000
    assert log.with_name("server.log.1").stat().st_size == 6 * 1024 * 1024


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
