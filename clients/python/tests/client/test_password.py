"""A rank that wants a password: with it a client is served, without it everything is a miss, and nobody says what it is."""

import asyncio
import logging
import os
import unittest
from unittest import mock

from rank import Client, Rank, until

from cascade_kv import AsyncClient, CascadeAdapter

SECRET = "a secret, née 1234"


class Passwords(unittest.TestCase):
    def setUp(self):
        self.rank = Rank("64MiB")
        self.addCleanup(self.rank.end)
        self.file = self.rank.dir / "password"
        self.write(SECRET)
        self.rank.command += ["--password-file", str(self.file)]
        with mock.patch.dict(os.environ, CASCADE_PASSWORD_FILE=str(self.file)):
            self.rank.start()

    def write(self, line, mode=0o600):
        self.file.write_text(line + "\nnot this line\n")
        self.file.chmod(mode)

    def client(self, **how):
        c = Client(self.rank.socket, **how)
        self.addCleanup(c.close)
        return c

    def test_with_it(self):
        for how in ({"password": SECRET}, {"password_file": str(self.file)}):
            c = self.client(**how)
            self.assertTrue(c.put("n", "k", b"v"))
            self.assertEqual(c.get("n", "k"), b"v")
            self.rank.kill()
            with mock.patch.dict(os.environ, CASCADE_PASSWORD_FILE=str(self.file)):
                self.rank.start()
            until(lambda: c.get("n", "k") == b"v", "after the rank was started again")

        async def get():
            c = AsyncClient(self.rank.socket, password=SECRET)
            try:
                return await c.get("n", "k")
            finally:
                await c.close()

        self.assertEqual(asyncio.run(get()), b"v")
        adapter = CascadeAdapter()
        self.assertTrue(adapter.initialize({"socket": self.rank.socket, "password_file": str(self.file)}))
        adapter.close()

    def test_without_it(self):
        for how in ({}, {"password": "another"}):
            c = self.client(**how)
            with self.assertLogs("cascade_kv", logging.WARNING) as said:
                self.assertFalse(c.put("n", "k", b"v"))
                self.assertIsNone(c.get("n", "k"))
                self.assertFalse(c.up)
            self.assertRegex("".join(said.output), "NOAUTH|WRONGPASS")

    def test_it_is_said_nowhere(self):
        with self.assertLogs("cascade_kv", logging.DEBUG) as said:
            c = self.client(password=SECRET)
            self.assertTrue(c.up)
            self.rank.kill()
            self.assertIsNone(c.get("n", "k"))
            wrong = self.client(password=SECRET)
            self.assertFalse(wrong.up)
        self.assertNotIn(SECRET, "".join(said.output) + repr(c) + repr(vars(c)))

    def test_files(self):
        c = self.client(password_file=str(self.file))
        for line, mode, said in ((SECRET, 0o644, "chmod 600"), ("", 0o600, "1 to 512 bytes"), ("x" * 513, 0o600, "1 to 512 bytes")):
            self.write(line, mode)
            with self.assertRaisesRegex(ValueError, said):
                Client(self.rank.socket, password_file=str(self.file))
        self.write(SECRET, 0o440)
        if os.geteuid() == 0:  # root's file, and a group of root's: as Kubernetes mounts secrets
            with mock.patch.dict(os.environ, WHERE=str(self.file.parent)):
                self.assertTrue(self.client(password_file="$WHERE/" + self.file.name).up)
            os.chown(self.file, 0, 54321)
        with self.assertRaisesRegex(ValueError, "chmod 600"):
            Client(self.rank.socket, password_file=str(self.file))
        self.file.unlink()
        os.mkfifo(self.file, 0o600)
        with self.assertRaisesRegex(ValueError, "not a regular file"):
            Client(self.rank.socket, password_file=str(self.file))
        self.file.unlink()
        with self.assertRaisesRegex(ValueError, "create it"):
            Client(self.rank.socket, password_file=str(self.file))
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.assertFalse(c.up)  # the file was there when it was made: no exception
        self.write(SECRET)
        until(lambda: c.up, "the file is back")


if __name__ == "__main__":
    unittest.main()
