"""fairlead worker images.tasks:app --slots 4"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from fairlead import Fairlead

app = Fairlead()


@app.task(queue="images", isolation="process", timeout="2m", max_memory="256MB")
def render(path: str, size: int = 64) -> int:
    """Draw a Mandelbrot set as a PNG; how many bytes it has."""
    rows = b"".join(
        b"\0"
        + bytes(_escapes(complex(3 * x / size - 2.2, 2.4 * y / size - 1.2)) for x in range(size))
        for y in range(size)
    )
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(rows)),
            _chunk(b"IEND", b""),
        )
    )
    return Path(path).write_bytes(image)


def _escapes(point: complex) -> int:
    value = 0j
    for step in range(255):
        value = value * value + point
        if abs(value) > 2:
            return step
    return 255


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
