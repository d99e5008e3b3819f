"""jemalloc is loaded before the server of the wheel, where there is one that can be trusted."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from fairlead.broker.records import Finding
from fairlead.broker.redis.embedded import EmbeddedBroker
from fairlead.embedded.allocator import FILE, find_allocator, loaded_by
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.embedded.valkey_server import find_binary, is_bundled
from tests.embedded.processes import client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is of Linux")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library under the name of jemalloc: a copy of one that every program can load."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    place = next(Path(line.split()[-1]) for line in maps if "/libm" in line and ".so" in line)
    folder = tmp_path / "libraries"
    folder.mkdir(mode=0o755)
    copy = folder / FILE
    shutil.copyfile(place, copy)
    copy.chmod(0o644)
    return copy


def test_the_server_has_the_library_that_was_found(home: Path, library: Path) -> None:
    assert is_bundled(find_binary())
    server = EmbeddedValkey(home, libraries=[library.parent])
    with server as endpoint, client(endpoint) as connection:
        assert connection.ping()
        assert loaded_by(endpoint.pid) == library
        assert server.jemalloc() == library


def test_without_one_the_server_starts_as_ever(home: Path, tmp_path: Path) -> None:
    server = EmbeddedValkey(home, libraries=[tmp_path / "nowhere"])
    with server as endpoint, client(endpoint) as connection:
        assert connection.ping()
        assert server.jemalloc() is None


def test_what_no_server_can_load_is_left_alone(home: Path, library: Path) -> None:
    library.write_bytes(b"this is no library")
    server = EmbeddedValkey(home, libraries=[library.parent])
    with server as endpoint, client(endpoint) as connection:
        assert connection.ping()
        assert server.jemalloc() is None
    assert "ld.so" not in (home / "valkey/server.log").read_text()


def test_who_preloads_something_chooses(
    home: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = library.with_name("libother.so")
    shutil.copyfile(library, other)
    monkeypatch.setenv("LD_PRELOAD", str(other))
    server = EmbeddedValkey(home, libraries=[library.parent])
    with server as endpoint:
        assert server.jemalloc() is None
        assert str(other) in Path(f"/proc/{endpoint.pid}/maps").read_text()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_can_write_to_is_no_place_for_it(library: Path, mode: int) -> None:
    binary = find_binary()
    assert find_allocator(binary, [library.parent]) == library
    library.parent.chmod(mode)
    assert find_allocator(binary, [library.parent]) is None


def test_nor_is_one_that_only_a_link_leads_to(library: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir(mode=0o755)
    (links / FILE).symlink_to(library)
    binary = find_binary()
    assert find_allocator(binary, [links]) == links / FILE
    library.parent.chmod(0o777)
    assert find_allocator(binary, [links]) is None


def test_nor_is_a_file_that_others_can_write(library: Path) -> None:
    library.chmod(0o666)
    assert find_allocator(find_binary(), [library.parent]) is None


def test_a_link_round_in_a_circle_is_none(library: Path) -> None:
    library.unlink()
    library.symlink_to(library)
    assert find_allocator(find_binary(), [library.parent]) is None


def test_the_first_folder_that_has_one_counts(library: Path, tmp_path: Path) -> None:
    assert find_allocator(find_binary(), [tmp_path, library.parent]) == library


def test_doctor_says_which_allocator_the_server_has(home: Path, library: Path) -> None:
    """Whoever starts it chooses; the others see what it has."""

    async def found() -> list[Finding]:
        broker = EmbeddedBroker(f"embedded://{home}")
        try:
            return [each for each in await broker.diagnose() if each.name == "allocator"]
        finally:
            await broker.close()

    with EmbeddedValkey(home, libraries=[library.parent]):
        (finding,) = asyncio.run(found())
        assert (finding.status, finding.text) == ("ok", f"jemalloc, from {library}")
    with EmbeddedValkey(home, libraries=[]):
        (finding,) = asyncio.run(found())
        assert finding.status == "ok"
        assert finding.text.startswith("the C library's; with jemalloc")
