"""The benchmark of idle latency measures something, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.latency import latency


def test_the_latency_of_a_few_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    found = latency(60, say=said.append)
    assert found.tasks == 60
    assert 0 < found.p50_ms <= found.p99_ms <= found.max_ms
    assert said == ["latency: 100 of 110 tasks"]
    assert list(tmp_path.iterdir()) == []
