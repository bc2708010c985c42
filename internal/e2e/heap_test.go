package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/need"
)

const (
	heapConns = 64
	heapValue = 32 << 20
	heapLimit = 64 << 20
)

// TestHeapStaysSmall lets 64 connections set and get 32 MiB each, at once, and
// watches the rank's heap by its own metrics.
func TestHeapStaysSmall(t *testing.T) {
	long(t)
	var shm unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &shm); err != nil {
		t.Fatal(err)
	}
	room := int64(shm.Bavail) * shm.Bsize
	need.That(t, room > 3<<30, "3 GiB in /dev/shm", fmt.Sprintf("%d MiB are free; enlarge it (mount -o remount,size=4G /dev/shm)", room>>20))
	admin := freePort(t)
	r := start(t, newPlace(t, "2304MiB"), "--admin-listen", admin)

	watch := watchHeap(t, "http://"+admin+"/metrics")
	tail := make([]byte, heapValue-8) // all values end in it
	for i := 0; i+8 <= len(tail); i += 8 {
		binary.LittleEndian.PutUint64(tail[i:], rand.Uint64())
	}
	failed := make(chan error, heapConns)
	var all, stored sync.WaitGroup
	stored.Add(heapConns)
	for i := range heapConns {
		all.Go(func() {
			c, err := net.Dial("unix", r.socket)
			if err == nil {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(2 * patience))
				err = bigSet(c, i, tail)
			}
			stored.Done()
			stored.Wait() // so that all values are there when the reading begins
			if err == nil {
				err = bigGet(c, i, tail)
			}
			failed <- err
		})
	}
	all.Wait()
	most, samples := watch()
	for range heapConns {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d connections with %d MiB each: heap in use at most %.1f MiB in %d samples", heapConns, heapValue>>20, float64(most)/(1<<20), samples)
	if most > heapLimit || samples < 3 {
		t.Errorf("heap in use reached %d bytes in %d samples, want at most %d", most, samples, heapLimit)
	}
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

// watchHeap samples the heap in use until the function it returns is called,
// which tells the most that was seen and in how many samples.
func watchHeap(t *testing.T, url string) func() (most int64, samples int) {
	t.Helper()
	if _, err := heapInUse(url); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	var most int64
	var samples int
	var failed error
	go func() {
		defer close(done)
		for {
			n, err := heapInUse(url)
			failed = errors.Join(failed, err)
			most = max(most, n)
			samples++
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	t.Cleanup(end)
	return func() (int64, int) {
		end()
		if failed != nil {
			t.Error(failed)
		}
		return most, samples
	}
}

// heapInUse reads one gauge of the rank's own runtime metrics.
func heapInUse(url string) (int64, error) {
	const name = "go_memstats_heap_inuse_bytes "
	answer, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	for s := bufio.NewScanner(answer.Body); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), name); ok {
			f, err := strconv.ParseFloat(value, 64)
			return int64(f), err
		}
	}
	return 0, fmt.Errorf("%s has no %s", url, name)
}
