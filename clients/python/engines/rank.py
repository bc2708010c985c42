"""A rank as a child process, for proofs that kill it and start it again."""

import contextlib
import json
import os
import pathlib
import random
import threading

from . import Failed
from .daemon import ROOT, Server

PAGE = 4096


class Rank(Server):
    """cascaded on a unix socket, and a TCP port if there is one, in the folder work; with an arena under /dev/shm if it is to be cold
    too, segments in a plain directory, and so many bytes on a disk below the arena, if any."""

    def __init__(self, work, shm_bytes, *, program=None, port=None, cold=False, nvme_bytes=0):
        program = pathlib.Path(program or ROOT / "bin" / "cascaded").resolve()
        if not program.exists():
            raise Failed(f"{program} is missing: make build")
        work = pathlib.Path(work)
        self.program, self.work = program, work
        self.directory = work / "segments" if cold else None
        self.arena = pathlib.Path(f"/dev/shm/cascade-{os.getpid()}-{work.name}.arena")
        path = work / "rank.sock"
        command = [program, f"--listen={f'127.0.0.1:{port}' if port else ''}", "--socket", path, "--shm-bytes", shm_bytes, "--shm-path", self.arena,
                   f"--lustre-dir={self.directory or ''}", "--lustre-index=off", "--password-file=", "--admin-listen=", "--log-level", "warn"]
        if nvme_bytes:
            command += ["--nvme-paths", work / "disk", "--nvme-bytes", nvme_bytes, "--nvme-file-bytes", "256KiB"]
        super().__init__("rank", command, work / "rank.log", port=port, path=path)

    def __exit__(self, *_):
        self.stop()
        self.arena.unlink(missing_ok=True)

    def stored(self):
        """How many blocks it has been given and has."""
        return json.loads(self.ask("CASCADE.STATS"))["names"]

    def namespaces(self):
        return [space["name"] for space in json.loads(self.ask("CASCADE.STATS"))["namespaces"]]

    def parents(self):
        """The parent of each block, by its key, of all namespaces; b"" has none."""
        found = {}
        for space in self.namespaces():
            cursor = b"0"
            while True:
                cursor, keys = self.ask("CASCADE.SCAN", space, cursor, "COUNT", 1000)
                for key in keys:
                    stat = self.ask("CASCADE.STAT", space, key) or []
                    found[key] = dict(zip(stat[::2], stat[1::2])).get(b"parent")
                if cursor == b"0":
                    break
        return found

    def generated(self, namespace, key):
        """Whether a block counts as of generated tokens."""
        return json.loads(self.ask("CASCADE.WHY", namespace, key))["generated"]

    def layouts(self):
        """How the blocks of each namespace are made, None where nobody declared it."""
        return [space.get("layout") for space in json.loads(self.ask("CASCADE.STATS"))["namespaces"]]

    def chill(self, seconds=300):
        """The rank is killed and started again, and then has all blocks in its segments alone."""
        answer = self.do("CASCADE.DRAIN", seconds=seconds)
        if not answer.startswith(b":"):
            raise Failed(f"the rank does not drain: {answer!r}")
        self.kill()
        self.arena.unlink()
        self.start()

    @contextlib.contextmanager
    def upgrading(self, pause=0.5):
        """The rank is replaced by the same program again and again, without leaving its clients. Each time must succeed, and one must."""
        ended, failed, done = threading.Event(), [], [0]

        def upgrade():
            while not failed:
                answer = self.do("CASCADE.UPGRADE", seconds=60)
                if answer.startswith(b"*"):
                    done[0] += 1
                else:
                    failed.append(answer)
                if ended.wait(pause):
                    return

        thread = threading.Thread(target=upgrade, daemon=True)
        thread.start()
        try:
            yield done
        finally:
            ended.set()
            thread.join(90)
        if failed or not done[0]:
            raise Failed(f"an upgrade of the rank fails after {done[0]}: {failed}")

    def flip_segments(self, bits, seed):
        return flip(sorted(self.directory.rglob("*.bin")), bits, seed)

    def flip(self, bits, seed):
        """Flips random bits in the parts of the arena that have been written. Returns how many pages of memory have one."""
        return flip([self.arena], bits, seed)


def flip(paths, bits, seed):
    """Flips random bits in the parts of some files that have been written. Returns how many pages have one."""
    draw = random.Random(seed)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("r+b", buffering=0)).fileno() for path in paths]
        written = [(fd, page) for fd in files for page in _written(fd)]
        if not written:
            raise Failed("nothing is written there")
        touched = set()
        for _ in range(bits):
            fd, page = draw.choice(written)
            at = page * PAGE + draw.randrange(min(PAGE, os.fstat(fd).st_size - page * PAGE))
            byte = os.pread(fd, 1, at)[0]
            os.pwrite(fd, bytes([byte ^ 1 << draw.randrange(8)]), at)
            touched.add((fd, page))
    return len(touched)


def _written(fd):
    """The numbers of the memory pages of a file that are not holes and not all zero."""
    end, at = os.fstat(fd).st_size, 0
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        for first in range(start // PAGE, -(-at // PAGE), 256):
            data = os.pread(fd, 256 * PAGE, first * PAGE)
            for i in range(0, len(data), PAGE):
                if data[i:i + PAGE].strip(b"\0"):
                    yield first + i // PAGE
