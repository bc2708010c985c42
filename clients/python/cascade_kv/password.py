"""The password of a rank: from the caller, or from the first line of a file that belongs to its reader alone. It is in no error and no log."""

from __future__ import annotations

import os
import stat
from typing import Final

MOST: Final = 512  # bytes
VARIABLE: Final = "CASCADE_PASSWORD_FILE"  # as for cascaded and cascade


class Password:
    """Where a client finds its password. The file is read at each connection, so it may change while an engine runs.

    Without either argument the file is the one that CASCADE_PASSWORD_FILE names, if it names one. Raises ValueError if there is none to be read.
    """

    def __init__(self, password: str | None, file: str | None) -> None:
        self._password = password
        named = None if password is not None else file or os.environ.get(VARIABLE) or None
        self._file = named and os.path.expanduser(os.path.expandvars(named))
        self.read()

    def read(self) -> str:
        """The password, empty if none is needed. Raises ValueError."""
        if self._file is None:
            return self._password or ""
        try:
            with open(self._file, "rb", opener=_without_waiting) as f:
                info = os.fstat(f.fileno())
                if not stat.S_ISREG(info.st_mode):
                    raise ValueError(f"password_file {self._file!r} is not a regular file")
                line = f.readline(MOST + 2).rstrip(b"\r\n")
        except OSError as e:
            raise ValueError(f"password_file: {e}; create it with mode 0600") from None
        if _exposed(info):
            raise ValueError(f"password_file {self._file!r}: mode {stat.S_IMODE(info.st_mode):#o} lets others read or change it; chmod 600 it")
        if not 0 < len(line) <= MOST:
            raise ValueError(f"password_file {self._file!r}: the first line is empty or too long; put 1 to {MOST} bytes there")
        return line.decode("utf-8", "surrogateescape")


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file. A pipe would wait for who writes it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _exposed(info: os.stat_result) -> bool:
    """Whether others than its owner and root can read or change a file.

    As for cascaded, a group of this process may read a file of root's: that is how Kubernetes hands out secrets (fsGroup).
    """
    others = stat.S_IMODE(info.st_mode) & 0o077
    given = info.st_uid == 0 and info.st_gid in (*os.getgroups(), os.getegid())
    return others != 0 and not (others == 0o040 and given)
