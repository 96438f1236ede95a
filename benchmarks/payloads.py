"""Seeded data: results and arguments of an exact size in bytes, in the shapes that pages send."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from benchmarks.driver import Call, Reply

KINDS = ("text", "non-ASCII", "nested", "nested+schema", "image")
"""Words; words of other scripts; deep JSON in structuredContent, without and with an outputSchema; base64."""

SIZES = (100, 10_000, 1_000_000, 9_900_000)
"""Bytes of the JSON text of a result, or of the arguments. A frame may have 10,000,000 with its envelope."""

MASK_KEY = b"\x8e\x31\xc7\x5a"
"""Of the one scenario with a masking key as browsers use, of any value but zeros."""

_BLOCK = 60_000
"""Characters that are made at random; longer data repeats them."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SCRIPTS = ("абвгдежзиклмнопрстуфхцчшщыэюя", "漢字仮名交文日本語中国書道茶", "áéíóúñçãõüöäßøå", "😀🚀🍵🌍")


def readable(size: int) -> str:
    """A size as the tables show it: `9.9 MB`, `10 kB`, `100 B`."""
    for factor, unit in ((1_000_000, "MB"), (1_000, "kB")):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


class Payloads:
    """Data of one seed. The same seed, kind and size give the same bytes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def result(self, kind: str, size: int) -> bytes:
        """JSON text of a CallToolResult of `size` bytes."""
        if kind == "image":
            return self._image(size, b'{"content":[{"type":"image","data":"', b'"}]}')
        if kind.startswith("nested"):
            return self._fit(kind, size, b'{"content":[],"structuredContent":', b"}")
        return self._fit(kind, size, b'{"content":[{"type":"text","text":', b"}]}")

    def arguments(self, kind: str, size: int) -> bytes:
        """JSON text of an object of `size` bytes."""
        if kind == "image":
            return self._image(size, b'{"data":"', b'"}')
        return self._fit(kind, size, b'{"input":', b"}")

    def _fit(self, kind: str, size: int, head: bytes, tail: bytes) -> bytes:
        room = size - len(head) - len(tail)
        return head + (self._nested(room) if kind.startswith("nested") else self._string(kind, room)) + tail

    def _random(self, kind: str) -> random.Random:
        return random.Random(f"{self._seed} {kind}")

    def _string(self, kind: str, room: int) -> bytes:
        """A JSON string of `room` bytes, with a line end after every twelve words."""
        choice = self._random(kind)
        words: list[str] = []
        length = 0
        while length < _BLOCK:
            letters = _LETTERS if kind == "text" or choice.random() < 0.2 else choice.choice(_SCRIPTS)
            word = "".join(choice.choices(letters, k=choice.randint(2, 10)))
            words.append(word + ("\n" if len(words) % 12 == 11 else " "))
            length += len(word) + 1
        block = json.dumps("".join(words), ensure_ascii=False)[1:-1].encode()
        text = _repeated(block, room - 2)
        # The cut may have gone through a character or an escape.
        text = text.decode(errors="ignore").rstrip("\\").encode()
        return b'"' + text + b"." * (room - 2 - len(text)) + b'"'

    def _nested(self, room: int) -> bytes:
        """A JSON object of `room` bytes: many items, each five to twelve levels deep, and one string to fill."""
        choice = self._random("nested")
        items = [json.dumps(_item(choice), separators=(",", ":")).encode() for _ in range(200)]
        size = room - len(b'{"items":[],"fill":""}')
        chosen: list[bytes] = []
        while True:
            item = items[len(chosen) % len(items)]
            if size < len(item) + 1:
                break
            chosen.append(item)
            size -= len(item) + 1
        if chosen:
            size += 1  # there is one comma less than there are items
        return b'{"items":[' + b",".join(chosen) + b'],"fill":"' + b"." * size + b'"}'

    def _image(self, size: int, head: bytes, tail: bytes) -> bytes:
        """Base64 comes in fours; the length of the MIME type makes up for the rest."""
        for mime in (b"image/png", b"image/webp", b"image/x-png", b"image/x-icon"):
            end = b'","mimeType":"' + mime + tail
            if (room := size - len(head) - len(end)) % 4 == 0:
                break
        block = "".join(self._random("image").choices(_LETTERS + _LETTERS.upper() + "0123456789+/", k=_BLOCK)).encode()
        return head + _repeated(block, room) + end


def _item(choice: random.Random) -> dict[str, object]:
    levels = choice.randint(4, 11)
    inner: object = [choice.randint(0, 10**6), round(choice.uniform(-1, 1), 6), None, True]
    for _ in range(levels):
        label = "".join(choice.choices(_LETTERS, k=5))
        inner = {label: inner} if choice.random() < 0.6 else [inner, label]
    return {"name": "".join(choice.choices(_LETTERS, k=8)), "price": round(choice.uniform(1, 999), 2), "more": inner}


def _repeated(block: bytes, size: int) -> bytes:
    return (block * (size // len(block) + 1))[:size]


def tool(name: str, *, with_output: bool = False) -> dict[str, object]:
    """A tool as a page defines it."""
    definition: dict[str, object] = {
        "name": name,
        "description": f"The tool {name} of the benchmarks: takes anything, answers what was prepared",
        "inputSchema": {"type": "object", "properties": {"input": {}, "data": {"type": "string"}}},
    }
    if with_output:
        items = {"type": "array", "items": {"type": "object", "required": ["name", "price"]}}
        definition["outputSchema"] = {
            "type": "object",
            "properties": {"items": items, "fill": {"type": "string"}},
            "required": ["items"],
        }
    return definition


class Page:
    """What a tab offers, gathered tool by tool."""

    def __init__(self) -> None:
        self._tools: list[dict[str, object]] = []
        self.replies: dict[bytes, Reply] = {}

    def add(self, name: str, reply: Reply, *, with_output: bool = False) -> None:
        self._tools.append(tool(name, with_output=with_output))
        self.replies[name.encode()] = reply

    @property
    def tools(self) -> bytes:
        return json.dumps(self._tools).encode()

    @property
    def names(self) -> list[str]:
        return [str(tool["name"]) for tool in self._tools]


Factory = Callable[[str, int], bytes]
SMALL = Reply(b'{"content":[{"type":"text","text":"ok"}]}')
SMALL_CALL = Call("small", b'{"input":"x"}')
