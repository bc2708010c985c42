package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/resp"
)

const secret = "s3cret"

func withPassword(o *Options) { o.Limits.Password = secret }

// owner is a client of the rank's own user that has authenticated.
func (r *rig) owner() *resp.Client {
	r.t.Helper()
	c := r.client("unix")
	if _, err := c.Do("AUTH", secret); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// answers fails the test unless the owner, who connects now, is served soon.
func (r *rig) answers() {
	r.t.Helper()
	began := time.Now()
	c := r.owner()
	if err := c.Set("owner", []byte("value")); err != nil {
		r.t.Errorf("SET of the owner: %v", err)
	}
	if _, err := c.Do("PING"); err != nil {
		r.t.Errorf("PING of the owner: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		r.t.Errorf("the owner waited %v", took)
	}
}

// strange opens n connections of a stranger over TCP, with do on each.
func (r *rig) strange(n int, do func(c net.Conn)) {
	r.t.Helper()
	var wg sync.WaitGroup
	gate := make(chan struct{}, 64)
	for range n {
		gate <- struct{}{}
		c, err := net.Dial("tcp", r.srv.Addr().String())
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { c.Close() })
		wg.Go(func() {
			defer func() { <-gate }()
			do(c)
		})
	}
	wg.Wait()
}

// write sends p without waiting for long.
func write(c net.Conn, p []byte) {
	_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	_, _ = c.Write(p) // the server may have closed it
}

// enoughFiles skips a test that opens n connections where it may not.
func enoughFiles(t *testing.T, n uint64) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur < 2*n+500 {
		t.Skipf("%d descriptors are too few: ulimit -n %d", l.Cur, 2*n+500)
	}
}

// Strangers who send junk without end and never read hold nothing that others
// need.
func TestStrangersThatDoNotRead(t *testing.T) {
	const n = 1100 // more than there are threads for those who send
	enoughFiles(t, n)
	r := newRig(t, 16<<20, withPassword, func(o *Options) { o.Limits.MaxConnections = 4096 })
	junk := bytes.Repeat([]byte(strings.Repeat("y", 120)+"\r\n"), 20_000)
	r.strange(n, func(c net.Conn) { write(c, junk) })
	r.answers()
	if n := r.srv.connections(); n > 1024+2 {
		t.Errorf("%d connections, of which at most a quarter of 4096 may have not authenticated", n)
	}
}

// Commands in the middle of which strangers stop take next to no memory.
func TestHalfCommandsOfStrangers(t *testing.T) {
	const n = 300
	enoughFiles(t, n)
	r := newRig(t, 16<<20, withPassword, func(o *Options) { o.Limits.MaxConnections = 4096 })
	before := heap()
	r.strange(n, func(c net.Conn) {
		write(c, append([]byte("*2\r\n$3\r\nDEL\r\n$4190000\r\n"), make([]byte, 1<<20)...))
	})
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	r.answers()
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// Clients with the password who announce large arguments and stop take little
// memory, too.
func TestHalfCommandsOfClients(t *testing.T) {
	const n = 300
	enoughFiles(t, n)
	r := newRig(t, 16<<20, withPassword, func(o *Options) { o.Limits.MaxConnections = 4096 })
	before := heap()
	r.strange(n, func(c net.Conn) {
		write(c, []byte("AUTH "+secret+"\r\n*2\r\n$3\r\nDEL\r\n$4190000\r\nxxxx"))
	})
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	r.answers()
}

// Idle strangers take no place of the owner, nor of clients that authenticate.
func TestIdleStrangers(t *testing.T) {
	r := newRig(t, 16<<20, withPassword, func(o *Options) { o.Limits.MaxConnections = 64 })
	r.strange(200, func(net.Conn) {})
	r.answers()
	c := r.client("tcp")
	if _, err := c.Do("AUTH", secret); err != nil {
		t.Errorf("a client that authenticates: %v", err)
	}
	if got := r.srv.strangers.Len(); got > 16 {
		t.Errorf("%d strangers of 64 connections are kept", got)
	}
}

// Clients that have authenticated can not take the owner's places.
func TestPlacesOfTheOwner(t *testing.T) {
	r := newRig(t, 16<<20, withPassword, func(o *Options) { o.Limits.MaxConnections = 64 })
	refused := 0
	for range 80 {
		c, rd := r.raw("tcp")
		if _, err := io.WriteString(c, "AUTH "+secret+"\r\n"); err != nil {
			t.Fatal(err)
		}
		if line, _ := rd.ReadString('\n'); line != "+OK\r\n" {
			refused++
		}
	}
	if want := 80 - (64 - reserved(64)); refused != want {
		t.Errorf("%d of 80 clients are refused, want %d", refused, want)
	}
	r.answers()
}

// Who does not authenticate in time is told, and let go.
func TestStrangersAreLetGo(t *testing.T) {
	r := newRig(t, 16<<20, withPassword)
	var clients []net.Conn
	var readers []*bufio.Reader
	for _, network := range []string{"unix", "tcp"} {
		c, rd := r.raw(network)
		_ = c.SetDeadline(time.Now().Add(3 * authWithin))
		clients, readers = append(clients, c), append(readers, rd)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a byte now and then does not help
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				for _, c := range clients {
					_, _ = c.Write([]byte("x"))
				}
			}
		}
	}()
	for i, rd := range readers {
		if line, err := rd.ReadString('\n'); !strings.HasPrefix(line, "-NOAUTH no authentication within") {
			t.Errorf("connection %d: %q, %v", i, line, err)
		}
	}
}

func TestCommandsOfStrangersAreCounted(t *testing.T) {
	r := newRig(t, 16<<20, withPassword)
	c, rd := r.raw("tcp")
	write(c, bytes.Repeat([]byte("PING\r\n"), 1000))
	text, _ := io.ReadAll(rd)
	if n := strings.Count(string(text), "\r\n"); n != earlyCommands+1 {
		t.Errorf("%d replies, want %d", n, earlyCommands+1)
	}
	if !strings.HasSuffix(string(text), "-NOAUTH too many commands before authentication\r\n") {
		t.Errorf("it ends with %q", text[max(0, len(text)-60):])
	}
	// Whoever authenticates is bounded no more, and whoever resets is again.
	c, rd = r.raw("tcp")
	write(c, append([]byte("AUTH "+secret+"\r\n"), bytes.Repeat([]byte("PING\r\n"), 1000)...))
	for i := range 1001 {
		if line, err := rd.ReadString('\n'); err != nil || line[0] != '+' {
			t.Fatalf("reply %d: %q, %v", i, line, err)
		}
	}
	write(c, []byte("RESET\r\n*11\r\n"))
	if text, _ := io.ReadAll(rd); !strings.Contains(string(text), "-NOAUTH") {
		t.Errorf("after RESET: %q", text)
	}
}

// What only announces a value evicts nothing, whoever sends it.
func TestAnnouncedValuesEvictNothing(t *testing.T) {
	r := newRig(t, 64<<20, withPassword)
	c := r.owner()
	value := randomBytes(1, 128<<10)
	for i := range 400 {
		if err := c.Set(fmt.Sprint("k", i), append(value, byte(i), byte(i>>8))); err != nil {
			t.Fatal(err)
		}
	}
	announce := "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$60000000\r\n"
	for _, network := range []string{"tcp", "unix"} {
		for range 4 {
			a, _ := r.raw(network)
			write(a, []byte(announce))
			b, _ := r.raw(network)
			write(b, []byte("AUTH "+secret+"\r\n"+announce+strings.Repeat("x", proofBytes/2)))
		}
	}
	time.Sleep(300 * time.Millisecond)
	got, buf := 0, make([]byte, 1<<20)
	for i := range 400 {
		if _, err := c.Get(fmt.Sprint("k", i), buf); err == nil {
			got++
		}
	}
	if got != 400 {
		t.Errorf("%d of 400 blocks are left", got)
	}
}

// Values that arrive slowly from others take half of memory at most, and the
// owner's is stored nevertheless.
func TestSlowValuesLeaveRoomForTheOwner(t *testing.T) {
	r := newRig(t, 64<<20, withPassword)
	for range 8 {
		c, _ := r.raw("tcp")
		write(c, []byte("AUTH "+secret+"\r\n*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$15000000\r\n"+strings.Repeat("x", 2*proofBytes)))
	}
	deadline := time.Now().Add(5 * time.Second)
	for r.srv.transit.Used() < 30_000_000 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if n := r.srv.transit.Used(); n != 30_000_000 {
		t.Errorf("%d bytes are taken for values that arrive, want two values of 15,000,000", n)
	}
	c := r.owner()
	if err := c.Set("mine", randomBytes(2, 20<<20)); err != nil {
		t.Errorf("SET of the owner: %v", err)
	}
}

// A value in small pieces is what was sent, from first to last byte.
func TestValuesWithPauses(t *testing.T) {
	r := newRig(t, 64<<20)
	for _, network := range []string{"unix", "tcp"} {
		for _, size := range []int{1, 100, 16 << 10, proofBytes - 1, proofBytes, proofBytes + 1, 200_000} {
			value := randomBytes(uint64(size), size)
			c, rd := r.raw(network)
			text := append(fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", size), value...)
			text = append(text, "\r\n"...)
			for at, step := 0, max(1, len(text)/7); at < len(text); at += step {
				if _, err := c.Write(text[at:min(at+step, len(text))]); err != nil {
					t.Fatal(err)
				}
				time.Sleep(8 * time.Millisecond) // more than linger
			}
			if line, err := rd.ReadString('\n'); line != "+OK\r\n" {
				t.Fatalf("%s, %d bytes: %q, %v", network, size, line, err)
			}
			got := make([]byte, size+1)
			if n, err := r.client(network).Get("k", got); err != nil || !bytes.Equal(got[:n], value) {
				t.Errorf("%s, %d bytes: what was stored is not what was sent (%v)", network, size, err)
			}
		}
	}
	if n := r.srv.transit.Used() + r.srv.arriving.Used(); n != 0 {
		t.Errorf("%d bytes of arriving values are not given back", n)
	}
}

// A value for which there is no room is dropped, and the connection goes on.
func TestDroppedValueInSync(t *testing.T) {
	r := newRig(t, 16<<20)
	for _, network := range []string{"unix", "tcp"} {
		c := r.client(network)
		err := c.Set("k", make([]byte, 40<<20))
		var se *resp.ServerError
		if !errors.As(err, &se) || !strings.Contains(se.Text, "can never fit") {
			t.Errorf("%s: %v", network, err)
		}
		if err := c.Set("k", []byte("v")); err != nil {
			t.Errorf("%s, after it: %v", network, err)
		}
	}
}

func TestNamesOfConnectionsAreBounded(t *testing.T) {
	r := newRig(t, 16<<20)
	c := r.client("unix")
	long := strings.Repeat("n", maxName+1)
	for _, args := range [][]string{{"CLIENT", "SETNAME", long}, {"HELLO", "3", "SETNAME", long}} {
		if _, err := c.Do(args...); err == nil || !strings.Contains(err.Error(), "cannot be longer") {
			t.Errorf("%.20v: %v", args, err)
		}
	}
	if _, err := c.Do("CLIENT", "SETNAME", long[1:]); err != nil {
		t.Error(err)
	}
}
