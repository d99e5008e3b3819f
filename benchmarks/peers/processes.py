"""Every process that the bench starts: each a group of its own, with a time limit, and ended.

Who leaves ``Processes`` leaves nothing running. If the bench is killed a guard does the same, which
is told of each process when it starts (see `guard`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.peers import guard

__all__ = ("Failure", "Processes")

_END_IN = 5.0  # seconds between SIGTERM and SIGKILL
_LAST = 300  # characters of what a process said that an error repeats


class Failure(Exception):
    """Something could not be measured; says why."""


class Processes:
    """What runs for the bench, and a folder that goes when the bench does."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fl-peers-"))
        self._running: list[subprocess.Popen[bytes]] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__).absolute())],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the bench
        )
        self._tell(str(self.folder))

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        """End everything, and remove the folder."""
        try:
            for process in reversed(self._running.copy()):
                self.stop(process, within=0.0)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            assert self._guard.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait()

    def start(
        self, command: Sequence[str], env: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process that runs until it is stopped; what it says goes to ``log``."""
        with log.open("ab") as output:
            return self._start(command, env, output.fileno(), output.fileno())

    def stop(self, process: subprocess.Popen[bytes], *, within: float = _END_IN) -> None:
        """End a process and all of its group, in good order if that is quick enough."""
        try:
            if within and process.poll() is None:
                process.terminate()
                process.wait(within)
        except subprocess.TimeoutExpired:
            pass  # it is killed below, like those that it may have left
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._running.remove(process)
            self._tell(f"-{process.pid}")

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        within: float,
        folder: Path | None = None,
    ) -> str:
        """Run a command to its end and return what it printed.

        Raises ``Failure`` with its last words if it fails, or takes longer than ``within`` seconds.
        """
        with _file(self.folder) as output, _file(self.folder) as errors:
            environment = os.environ if env is None else env
            process = self._start(command, environment, output, errors, folder)
            late = False
            try:
                process.wait(within)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                self.stop(process, within=0.0)
            said, complaint = _content(output), _content(errors)
        if late:
            raise Failure(f"not done within {within:g} s")
        if process.returncode:
            raise Failure(_last_line(complaint) or f"ended with {process.returncode}")
        return said

    def _start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(
                list(command),
                env=dict(env),
                cwd=folder or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise Failure(f"{command[0]} cannot be started: {error.strerror}") from error
        self._running.append(process)
        self._tell(f"+{process.pid}")
        return process

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # who has killed the guard goes without it
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()


@contextlib.contextmanager
def _file(folder: Path) -> Iterator[int]:
    """A file without a name: a pipe that nobody reads would hold up who writes."""
    with tempfile.TemporaryFile(dir=folder) as file:
        yield file.fileno()


def _content(file: int) -> str:
    size = os.lseek(file, 0, os.SEEK_END)
    return os.pread(file, size, 0).decode("utf-8", "replace")


def _last_line(text: str) -> str:
    """Return the line that says what went wrong: the last, or the last that begins with it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "npm error"))]
    return (errors or lines or [""])[-1][:_LAST]
