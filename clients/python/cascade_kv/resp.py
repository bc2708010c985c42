"""The Redis protocol, version 2, as far as a rank speaks it: requests to bytes, bytes to replies. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from .errors import ProtocolError, Refused

Word: TypeAlias = "bytes | str"
Keys = Sequence[Word]

MAX_LINE: Final = 64 << 10
MAX_BULK: Final = 512 << 20
MAX_ITEMS: Final = 1 << 21
MAX_DEPTH: Final = 8
MAX_DIGITS: Final = 20
START_BYTES: Final = 64 << 10
KEEP_BYTES: Final = 8 << 20  # a buffer that grew for a value is kept up to this: new memory costs more than the copy

INCOMPLETE: Final = object()

_PLUS, _MINUS, _COLON, _DOLLAR, _STAR = b"+-:$*"


def word(w: Word) -> bytes:
    """The bytes of a key, namespace or option."""
    return w.encode() if isinstance(w, str) else bytes(w)


def words(*items: Word | int) -> bytes:
    """Bulk strings one after the other, without the head of an array."""
    out = []
    for item in items:
        b = b"%d" % item if isinstance(item, int) else word(item)
        out.append(b"$%d\r\n%b\r\n" % (len(b), b))
    return b"".join(out)


def keys_bytes(keys: Keys) -> bytes:
    """The same for many keys. Keys of one length, which engines have, cost one join."""
    if not keys:
        return b""
    if isinstance(keys[0], str):
        return _join([word(k) for k in keys])
    try:
        return _join(keys)
    except TypeError:  # text among bytes
        return _join([word(k) for k in keys])


def _join(keys: Sequence[Any]) -> bytes:
    if len(set(map(len, keys))) == 1:
        n = len(keys[0])
        return b"$%d\r\n%b\r\n" % (n, (b"\r\n$%d\r\n" % n).join(keys))
    return b"".join([b"$%d\r\n%b\r\n" % (len(k), k) for k in keys])


def head(count: int) -> bytes:
    """The head of a request of so many words."""
    return b"*%d\r\n" % count


class Decoder:
    """Replies out of a stream of bytes.

    The reader asks room() for memory, receives into it, tells got() how many bytes came, and calls reply() until that is
    INCOMPLETE. Bytes that are no reply raise ProtocolError; the decoder is of no use after that. Memory grows with the
    bytes that have come, never with a length that was only announced.
    """

    def __init__(self) -> None:
        self._buf = bytearray(START_BYTES)
        self._pos = 0  # first byte that is not decoded
        self._end = 0  # first byte that is not filled
        self._wanted = 0  # a reply can not be complete before _end reaches this
        self._open: list[tuple[list[Any], int]] = []  # arrays that are not complete: items so far, items in all

    def room(self) -> memoryview:
        """Memory for the next bytes, at least one. Release it before anything else is called."""
        if self._pos == self._end and not self._open:
            self._pos = self._end = self._wanted = 0
            if len(self._buf) > KEEP_BYTES:
                self._buf = bytearray(START_BYTES)
        if self._end == len(self._buf):
            if self._pos >= len(self._buf) // 2:  # what was decoded makes the room
                del self._buf[: self._pos]
                self._end -= self._pos
                self._wanted -= self._pos
                self._pos = 0
            self._buf += bytes(max(len(self._buf), START_BYTES))
        return memoryview(self._buf)[self._end :]

    def got(self, n: int) -> None:
        self._end += n

    @property
    def empty(self) -> bool:
        """Whether every byte that came belongs to a reply that was returned."""
        return self._pos == self._end and not self._open

    def reply(self) -> Any:
        """The next reply, or INCOMPLETE: None, int, text, bytes or a list of those. An error line is a Refused, as a value."""
        if self._end < self._wanted:
            return INCOMPLETE
        buf, end = self._buf, self._end
        while True:
            pos = self._pos
            eol = buf.find(b"\r\n", pos, end)
            if eol < 0:
                if end - pos > MAX_LINE:
                    raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
                return INCOMPLETE
            kind = buf[pos]
            value: Any
            if kind == _DOLLAR:
                n = self._number(pos + 1, eol)
                stop = eol + 2 + n
                if n == -1:
                    value, stop = None, eol
                elif not 0 <= n <= MAX_BULK:
                    raise ProtocolError(f"a bulk of {n} bytes")
                elif stop + 2 > end:
                    self._wanted = stop + 2
                    return INCOMPLETE
                elif buf[stop] != 13 or buf[stop + 1] != 10:
                    raise ProtocolError(f"a bulk of {n} bytes does not end where it should")
                elif n < 4096:
                    value = bytes(buf[eol + 2 : stop])
                else:
                    with memoryview(buf) as m:
                        value = bytes(m[eol + 2 : stop])
                self._pos = stop + 2
            elif kind == _COLON:
                value = self._number(pos + 1, eol)
                self._pos = eol + 2
            elif kind == _STAR:
                n = self._number(pos + 1, eol)
                self._pos = eol + 2
                if n > 0:
                    if n > MAX_ITEMS or len(self._open) == MAX_DEPTH:
                        raise ProtocolError(f"an array of {n} at depth {len(self._open)}")
                    self._open.append(([], n))
                    continue
                if n < -1:
                    raise ProtocolError(f"an array of {n}")
                value = None if n < 0 else []
            elif kind == _PLUS:
                value = bytes(buf[pos + 1 : eol]).decode("utf-8", "replace")
                self._pos = eol + 2
            elif kind == _MINUS:
                value = Refused(bytes(buf[pos + 1 : eol]).decode("utf-8", "replace"))
                self._pos = eol + 2
            else:
                raise ProtocolError(f"a reply that begins with byte {kind}")
            while self._open:
                items, n = self._open[-1]
                items.append(value)
                if len(items) < n:
                    break
                self._open.pop()
                value = items
            else:
                return value

    def _number(self, start: int, stop: int) -> int:
        text = self._buf[start:stop]
        if text.isdigit() and len(text) <= MAX_DIGITS:
            return int(text)
        if text[:1] == b"-" and text[1:].isdigit() and len(text) <= MAX_DIGITS:
            return int(text)
        raise ProtocolError(f"{bytes(text[:40])!r} is no number")


def as_map(reply: Any) -> dict[Any, Any]:
    """A map of RESP2: keys and values in turn."""
    if not isinstance(reply, list) or len(reply) % 2:
        raise ProtocolError("a reply that should be a map is none")
    try:
        return dict(zip(reply[::2], reply[1::2], strict=True))
    except TypeError as e:
        raise ProtocolError("a map with arrays for keys") from e
