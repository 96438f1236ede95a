"""Draws the extension's icons, with the standard library only: `python docs/make_icons.py`.

Three dots joined through a fourth, white on a filled square, so that they read on light and dark toolbars alike.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "trio_relay" / "browser" / "icons"
SAMPLES = 4
"""Each pixel is the mean of `SAMPLES` × `SAMPLES` points."""

TOP, BOTTOM = (92, 104, 236), (58, 66, 190)
WHITE = (255, 255, 255)
CORNER = 0.22
"""Radius of the square's corners. All lengths are parts of the icon's side, measured from its middle."""

REACH = 0.29
DOTS = [(REACH * math.sin(turn), -REACH * math.cos(turn)) for turn in (0, math.tau / 3, 2 * math.tau / 3)]
SINK = 0.045
"""The triangle's middle is above the middle of its height: everything is drawn this much lower."""


def shapes(side: int) -> tuple[float, float, float, float]:
    """Radius of the outer dots and of the middle one, half the width of the lines, margin. Small icons are bolder."""
    if side <= 16:
        return 0.125, 0.115, 0.05, 0.0
    if side < 100:
        return 0.108, 0.125, 0.036, 0.0
    return 0.095, 0.12, 0.028, 0.03


def colour(x: float, y: float, side: int) -> tuple[int, int, int] | None:
    """What is at a point, -0.5 to 0.5 from the middle; None outside the square."""
    outer, middle, line, margin = shapes(side)
    straight = 0.5 - margin - CORNER
    if math.hypot(max(abs(x) - straight, 0), max(abs(y) - straight, 0)) > CORNER:
        return None
    sunk = y - SINK
    if math.hypot(x, sunk) <= middle:
        return WHITE
    for dot_x, dot_y in DOTS:
        along = max(0.0, min(1.0, (x * dot_x + sunk * dot_y) / REACH**2))
        if math.hypot(x - dot_x, sunk - dot_y) <= outer or math.hypot(x - along * dot_x, sunk - along * dot_y) <= line:
            return WHITE
    share = y + 0.5
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(TOP, BOTTOM, strict=True))
    return red, green, blue


def pixel(column: int, row: int, side: int) -> bytes:
    """Red, green, blue and opacity."""
    seen = []
    for step in range(SAMPLES**2):
        x = (column + (step % SAMPLES + 0.5) / SAMPLES) / side - 0.5
        y = (row + (step // SAMPLES + 0.5) / SAMPLES) / side - 0.5
        point = colour(x, y, side)
        if point is not None:
            seen.append(point)
    if not seen:
        return bytes(4)
    return bytes([*(round(sum(parts) / len(seen)) for parts in zip(*seen, strict=True)), 255 * len(seen) // SAMPLES**2])


def png(side: int) -> bytes:
    rows = b"".join(b"\0" + b"".join(pixel(column, row, side) for column in range(side)) for row in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def main() -> None:
    for side in (16, 32, 48, 128):
        (FOLDER / f"{side}.png").write_bytes(png(side))


if __name__ == "__main__":
    main()
