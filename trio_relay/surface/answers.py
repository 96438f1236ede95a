"""The lines the raw lane answers with: what the SDK would add to a result, in both protocol eras."""

from __future__ import annotations

import logging
from itertools import count

import msgspec
from msgspec import Raw

from trio_relay.core.backend import ToolBackend
from trio_relay.core.results import CallResult, error_result
from trio_relay.core.tooldef import join
from trio_relay.surface.management import LISTING
from trio_relay.wire.codec import MAX_INTEGER_DIGITS, has_overlong_integer, nested_deeper_than, one_line
from trio_relay.wire.mcp import SERVER_INFO_KEY, result_line

logger = logging.getLogger(__name__)

MAX_LINE = (10 << 20) - (64 << 10)
"""Longest line written, in bytes. The TypeScript client ends the session when more than 10 MiB wait in its buffer,
and the beginning of the next line counts."""

MAX_DEPTH = 200
"""Deepest nesting of a line. The Python client drops a line that nests 201 deep without a word, and its call hangs
(measured; its JSON parser's recursion limit)."""

PAGE_BYTES = 4 << 20
"""A list up to this size is one page: some clients read the first page only."""

_members = msgspec.json.Decoder(dict[str, Raw])


class Page(msgspec.Struct, frozen=True):
    tools: bytes
    next_cursor: str | None


class Answers:
    """Builds response lines.

    Attributes:
        stamp: JSON text of the serverInfo that modern results carry.
    """

    def __init__(self, backend: ToolBackend) -> None:
        self._backend = backend
        self._generations = count(1)
        self._generation = 0
        self._pages: list[bytes] = []
        self.stamp = b"{}"

    def page(self, cursor: str | None) -> Page | None:
        """A page of the tools list; without a cursor the first one of the list as it is now.

        Returns:
            None for a cursor of another list than the last one that was begun.
        """
        if cursor is None:
            self._backend.asked()
            self._pages = _paginate([LISTING, *self._backend.listing()])
            self._generation = next(self._generations)
            index = 0
        else:
            generation, _, number = cursor.partition(".")
            known = {str(index): index for index in range(len(self._pages))}
            if generation != str(self._generation) or number not in known:
                return None
            index = known[number]
        more = index + 1 < len(self._pages)
        page = Page(self._pages[index], f"{self._generation}.{index + 1}" if more else None)
        if len(self._pages) == 1:
            self._pages = []  # nobody will ask for it again
        return page

    def list_line(self, request_id: bytes, page: Page, *, modern: bool) -> bytes:
        parts = [b'{"tools":[', page.tools, b"]"]
        if page.next_cursor is not None:
            parts.append(b',"nextCursor":"%s"' % page.next_cursor.encode())
        if modern:
            parts += [b',"ttlMs":0,"cacheScope":"private"', self._tail()]
        else:
            parts.append(b"}")
        return result_line(request_id, b"".join(parts))

    def call_line(self, request_id: bytes, result: CallResult, *, modern: bool) -> bytes:
        """The response to a call; one that no client could read is replaced by an error that says so."""
        line, problem = b"", None
        try:
            line = self._call_line(request_id, result, modern=modern)
            too_deep = nested_deeper_than(line, MAX_DEPTH) if len(line) <= MAX_LINE else False
        except RecursionError:  # of a `_meta` that has to be taken apart
            too_deep = True
        if len(line) > MAX_LINE:
            problem = f"has {len(line)} bytes; MCP clients end the session above {MAX_LINE}"
        elif too_deep:
            problem = f"nests more than {MAX_DEPTH} levels deep, which some MCP clients cannot read"
        elif has_overlong_integer(line):
            problem = f"holds an integer of more than {MAX_INTEGER_DIGITS} digits, which some MCP clients cannot read"
        if problem is None:
            return line
        logger.warning("a result is refused: it %s", problem)
        refusal = error_result(f"The result {problem}. Ask the page for less, or in parts.")
        return self._call_line(request_id, refusal, modern=modern)

    def _call_line(self, request_id: bytes, result: CallResult, *, modern: bool) -> bytes:
        head = b'{"jsonrpc":"2.0","id":' + request_id + b',"result":'
        if not modern:
            return b"".join((head, *result.pieces, b"}\n"))
        if not result.has_meta:
            *most, last = result.pieces
            return b"".join((head, *most, memoryview(last)[:-1], self._tail(), b"}\n"))
        members = {key: bytes(value) for key, value in _members.decode(result.json).items()}
        meta = {key: bytes(value) for key, value in _members.decode(members["_meta"]).items()}
        if meta.get(SERVER_INFO_KEY, b"null") == b"null":
            meta[SERVER_INFO_KEY] = self.stamp
        members |= {"_meta": join(meta), "resultType": b'"complete"'}
        return b"".join((head, join(members), b"}\n"))

    def _tail(self) -> bytes:
        return b',"resultType":"complete","_meta":{"%s":%s}}' % (SERVER_INFO_KEY.encode(), self.stamp)


def _paginate(listings: list[bytes]) -> list[bytes]:
    """Gather tabs into pages of at most `PAGE_BYTES`; a tab (at most 2 MiB and its prefixes) is never split."""
    pages: list[list[bytes]] = [[]]
    size = 0
    for listing in listings:
        if pages[-1] and size + len(listing) > PAGE_BYTES:
            pages.append([])
            size = 0
        pages[-1].append(listing)
        size += len(listing) + 1
    return [one_line(b",".join(page)) for page in pages]
