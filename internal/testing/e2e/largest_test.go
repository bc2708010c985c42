package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testneed"

	"golang.org/x/sys/unix"
)

// TestLargestValue: a value of as many bytes as the protocol has room for goes in
// and out by pieces, whose heap is none of the rank's; one more byte is refused
// with the limit.
func TestLargestValue(t *testing.T) {
	var shm unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &shm); err != nil {
		t.Fatal(err)
	}
	room := int64(shm.Bavail) * shm.Bsize
	testneed.That(t, room > 1<<30, "1 GiB in /dev/shm", fmt.Sprintf("%d MiB are free; enlarge it (mount -o remount,size=2G /dev/shm)", room>>20))
	admin := freePort(t)
	r := start(t, newPlace(t, "768MiB"), "--admin-listen", admin)
	before := allocated(t, admin)
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(2 * patience))
		return c, bufio.NewReaderSize(c, 256<<10)
	}
	c, in := dial()
	piece := make([]byte, 1<<20) // each begins with its number
	for i := range piece {
		piece[i] = byte(rand.Uint32())
	}
	begin := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", resp.MaxBulk)
	if _, err := io.WriteString(c, begin); err != nil {
		t.Fatal(err)
	}
	for i := range resp.MaxBulk / len(piece) {
		binary.LittleEndian.PutUint64(piece, uint64(i))
		if _, err := c.Write(piece); err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
	}
	if _, err := io.WriteString(c, "\r\nGET k\r\n"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"+OK\r\n", fmt.Sprintf("$%d\r\n", resp.MaxBulk)} {
		if line, err := in.ReadString('\n'); err != nil || line != want {
			t.Fatalf("answer %q, %v; want %q", line, err, want)
		}
	}
	got := make([]byte, len(piece))
	for i := range resp.MaxBulk / len(piece) {
		binary.LittleEndian.PutUint64(piece, uint64(i))
		if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, piece) {
			t.Fatalf("piece %d is not what was set (%v)", i, err)
		}
	}
	if grown := allocated(t, admin) - before; grown > heapLimit {
		t.Errorf("%d bytes are allocated, want at most %d", grown, heapLimit)
	} else {
		t.Logf("%.1f MiB are allocated", float64(grown)/(1<<20))
	}

	c, in = dial()
	fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", resp.MaxBulk+1)
	want := fmt.Sprintf("-ERR Protocol error: invalid bulk length: %d, at most %d are taken at byte 20\r\n", resp.MaxBulk+1, resp.MaxBulk)
	if line, err := in.ReadString('\n'); err != nil || line != want {
		t.Errorf("one byte more is answered %q, %v; want %q", line, err, want)
	}
}
