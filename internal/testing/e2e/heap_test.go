package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
)

const (
	heapConns = 64
	heapValue = 32 << 20

	// heapLimit bounds what is allocated in all, collected since or not: so it bounds
	// what is live at a time, too, and does not depend on when Go collects. The heap in
	// use does: heapfloor lets 64 MiB gather as garbage. It is one value of the 64.
	heapLimit = 32 << 20

	// heapReaders get at once. Replies that are not read may borrow a quarter of the arena:
	// beyond that the rank gives those up that are not read for five seconds, which
	// happens to readers on a busy machine.
	heapReaders = 16
)

// TestHeapStaysSmall lets 64 connections set 32 MiB each at once and then get them,
// 16 at once: the bytes of values are not on the rank's heap.
func TestHeapStaysSmall(t *testing.T) {
	long(t)
	var shm unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &shm); err != nil {
		t.Fatal(err)
	}
	room := int64(shm.Bavail) * shm.Bsize
	testneed.That(t, room > 3<<30, "3 GiB in /dev/shm", fmt.Sprintf("%d MiB are free; enlarge it (mount -o remount,size=4G /dev/shm)", room>>20))
	admin := freePort(t)
	r := start(t, newPlace(t, "2304MiB"), "--admin-listen", admin)

	before := allocated(t, admin)
	tail := make([]byte, heapValue-8) // all values end in it
	for i := 0; i+8 <= len(tail); i += 8 {
		binary.LittleEndian.PutUint64(tail[i:], rand.Uint64())
	}
	failed := make(chan error, heapConns)
	reading := make(chan struct{}, heapReaders)
	var all, stored sync.WaitGroup
	stored.Add(heapConns)
	for i := range heapConns {
		all.Go(func() {
			nc, err := net.Dial("unix", r.socket)
			c := patient{nc}
			if err == nil {
				defer c.Close()
				err = bigSet(c, i, tail)
			}
			stored.Done()
			stored.Wait() // so that all values are there when the reading begins
			if err == nil {
				reading <- struct{}{}
				err = bigGet(c, i, tail)
				<-reading
			}
			failed <- err
		})
	}
	all.Wait()
	grown := allocated(t, admin) - before
	for range heapConns {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d connections with %d MiB each: %.1f MiB are allocated", heapConns, heapValue>>20, float64(grown)/(1<<20))
	if grown > heapLimit {
		t.Errorf("%d bytes are allocated, want at most %d", grown, heapLimit)
	}
}

// patient bounds each wait for the rank instead of all of them together, which become
// long on a busy machine.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetDeadline(time.Now().Add(patience))
	return p.Conn.Read(b)
}

func (p patient) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, 1<<20) {
		_ = p.SetDeadline(time.Now().Add(patience))
		m, err := p.Conn.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// bigSet sends the value of connection i from where it lies.
func bigSet(c net.Conn, i int, tail []byte) error {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(i))
	key := strconv.Itoa(i)
	start := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, heapValue)
	parts := net.Buffers{[]byte(start), head[:], tail, []byte("\r\n")}
	if _, err := parts.WriteTo(c); err != nil {
		return fmt.Errorf("SET %d: %w", i, err)
	}
	answer := make([]byte, 64)
	if n, err := c.Read(answer); err != nil || string(answer[:n]) != "+OK\r\n" {
		return fmt.Errorf("SET %d: %q, %w", i, answer[:n], err)
	}
	return nil
}

// bigGet compares the value of connection i piece by piece.
func bigGet(c net.Conn, i int, tail []byte) error {
	key := strconv.Itoa(i)
	if _, err := fmt.Fprintf(c, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key); err != nil {
		return fmt.Errorf("GET %d: %w", i, err)
	}
	in := bufio.NewReaderSize(c, 256<<10)
	line, err := in.ReadString('\n')
	if want := fmt.Sprintf("$%d\r\n", heapValue); err != nil || line != want {
		return fmt.Errorf("GET %d: %q, %w; want %q", i, line, err, want)
	}
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err != nil || binary.LittleEndian.Uint64(head[:]) != uint64(i) {
		return fmt.Errorf("GET %d: begins with %x, %w", i, head, err)
	}
	part := make([]byte, 64<<10)
	for at := 0; at < len(tail); {
		n := min(len(part), len(tail)-at)
		if _, err := io.ReadFull(in, part[:n]); err != nil {
			return fmt.Errorf("GET %d: at byte %d: %w", i, at, err)
		}
		if !bytes.Equal(part[:n], tail[at:at+n]) {
			return fmt.Errorf("GET %d: wrong bytes between %d and %d", i, at, at+n)
		}
		at += n
	}
	if end, err := in.Peek(2); err != nil || string(end) != "\r\n" {
		return fmt.Errorf("GET %d: ends in %q, %w", i, end, err)
	}
	return nil
}

// allocated is how many bytes of heap the rank has allocated since it started, by the
// metrics of its admin listener.
func allocated(t *testing.T, admin string) int64 {
	t.Helper()
	const name = "go_memstats_alloc_bytes_total "
	answer, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	for s := bufio.NewScanner(answer.Body); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), name); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int64(f)
		}
	}
	t.Fatalf("the metrics have no %s", name)
	return 0
}
