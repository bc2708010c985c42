"""Who serves a unix socket. The kernel is asked before the first byte, so that no other user gets a password, a descriptor or a key."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable
from typing import Final

from .errors import ForeignServer

VARIABLE: Final = "CASCADE_SERVER_UIDS"  # as for cascade
MOST_UID: Final = (1 << 32) - 2

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid
_LIST: Final = re.compile(r"\s*(\d+\s*(,\s*\d+\s*)*)?")


class Trust:
    """The users whose rank a client accepts: its own user, root, and those listed.

    uids are numeric user ids, or a text of them with commas between; None: those that CASCADE_SERVER_UIDS lists, if it is set.
    Raises ValueError for anything else.
    """

    def __init__(self, uids: Iterable[int] | str | None) -> None:
        self._listed = frozenset(_parsed(os.environ.get(VARIABLE, "") if uids is None else uids))

    def check(self, sock: socket.socket, path: str) -> int:
        """The user who serves the other end of a connected socket. Raises ForeignServer if that user is not trusted.

        It is the user who called listen(), whoever accepts.
        """
        _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        own = os.geteuid()
        if uid not in (own, 0) and uid not in self._listed:
            raise ForeignServer(path, uid, own)
        return int(uid)


def _parsed(uids: Iterable[int] | str) -> list[int]:
    if isinstance(uids, str):
        if not _LIST.fullmatch(uids):
            raise ValueError(f"server_uids: {uids!r} is no list of numeric user ids with commas between; id -u prints them")
        uids = [int(u) for u in uids.split(",") if u.strip()]
    listed = list(uids)
    for u in listed:
        if isinstance(u, bool) or not isinstance(u, int) or not 0 <= u <= MOST_UID:
            raise ValueError(f"server_uids: {u!r} is no numeric user id; id -u prints them")
    return listed


def is_owned(fd: int, server: int) -> bool:
    """Whether a file that a rank of user server sent belongs to that user or to root.

    Another owner could change its bytes, or truncate it under a reader, which ends the reader's process.
    """
    return os.fstat(fd).st_uid in (server, 0)
