"""What became readable on a rank, or is no more."""

import unittest

from rank import OneRank


class Events(OneRank):
    def test_stored_and_removed(self):
        start = self.c.events()
        self.assertEqual((start.events, start.lost), ([], 0))
        self.c.put(self.ns, "a", b"12345")
        self.c.put(self.ns, b"\xff\r\n", b"1")
        self.c.delete(self.ns, ["a"])
        got, at = [], start.next
        while len(got) < 3:
            some = self.c.events(at, wait=5)
            self.assertEqual(some.next, at + len(some.events))
            self.assertTrue(some.events)
            got += [e for e in some.events if e.namespace == self.ns]
            at = some.next
        self.assertEqual(
            [tuple(e) for e in got], [("stored", self.ns, b"a", 5), ("stored", self.ns, b"\xff\r\n", 1), ("removed", self.ns, b"a", 5)]
        )
        self.assertEqual(self.c.events(start.next, most=1).next, start.next + 1)
        self.assertEqual(self.c.events(at, wait=0.01).events, [])


if __name__ == "__main__":
    unittest.main()
