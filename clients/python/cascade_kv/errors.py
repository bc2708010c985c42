"""What can go wrong. Engines see only RegionRefused and ValueError; the others are turned into misses by the clients."""


class CascadeError(Exception):
    """Base of all errors of this package."""


class RegionRefused(CascadeError):
    """The rank is there and does not take this region. The text is the rank's, with the reason."""


class Refused(CascadeError):
    """The rank answered a request with an error line. The connection stays in use."""

    @property
    def code(self) -> str:
        """The first word of the line: ERR, BUSY, NOPERM, OOM."""
        return str(self).split(" ", 1)[0]


class ProtocolError(CascadeError):
    """What was read is no reply of a rank. The connection is given up."""


class LinkLost(CascadeError):
    """The connection ended or a deadline passed before the answer was complete."""

    def __init__(self, what: str, *, stale: bool = False) -> None:
        super().__init__(what)
        self.stale = stale  # the other side had closed it before this request: a rank that was restarted meanwhile
