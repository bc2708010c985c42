"""What can go wrong. Engines see only RegionRefused and ValueError; the others are turned into misses by the clients, which log them."""


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


class ForeignServer(CascadeError):
    """The socket is served by a user whom the client does not trust. Nothing was sent there."""

    def __init__(self, path: str, uid: int, own: int) -> None:
        super().__init__(
            f"{path} is served by uid {uid}, neither this user (uid {own}) nor root: nothing was sent there. Name the socket of "
            f"your own rank, in a directory that only you can write to; or, if uid {uid} is to be trusted, list it in server_uids "
            "or CASCADE_SERVER_UIDS"
        )
        self.path = path
        self.uid = uid


class ProtocolError(CascadeError):
    """What was read is no reply of a rank. The connection is given up."""


class LinkLost(CascadeError):
    """The connection ended or a deadline passed before the answer was complete."""

    def __init__(self, what: str, *, stale: bool = False) -> None:
        super().__init__(what)
        self.stale = stale  # the other side had closed it before this request: a rank that was restarted meanwhile
