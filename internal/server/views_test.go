package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/internal/resp"
)

// viewer is a client that receives descriptors and maps the arena.
type viewer struct {
	*resp.Client
	t     testing.TB
	fds   []int
	arena []byte // read-only

	filled int
}

// rightsConn is a viewer's connection that keeps the descriptors that come.
type rightsConn struct {
	*net.UnixConn
	to *viewer
}

// Read implements net.Conn.
func (e *rightsConn) Read(p []byte) (int, error) {
	oob := make([]byte, 128)
	n, oobn, _, _, err := e.ReadMsgUnix(p, oob)
	if err == nil && oobn > 0 {
		msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for _, m := range msgs {
			fds, _ := unix.ParseUnixRights(&m)
			e.to.fds = append(e.to.fds, fds...)
		}
	}
	return n, err
}

// viewer connects, and maps the arena as the rank hands it over.
func (r *rig) viewer() *viewer {
	r.t.Helper()
	nc, err := net.Dial("unix", r.sock)
	if err != nil {
		r.t.Fatal(err)
	}
	e := &viewer{t: r.t}
	e.Client = resp.NewClient(&rightsConn{nc.(*net.UnixConn), e}, 20*time.Second)
	r.t.Cleanup(func() { e.Close() })
	rep := e.do("CASCADE.ARENA")
	if len(e.fds) != 1 || len(rep.Elems) != 1 {
		r.t.Fatalf("ARENA: %+v with %d descriptors", rep, len(e.fds))
	}
	if e.arena, err = unix.Mmap(e.fds[0], 0, int(rep.Elems[0].Int), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = unix.Munmap(e.arena)
		_ = unix.Close(e.fds[0])
	})
	return e
}

func (e *viewer) do(args ...string) resp.Reply {
	e.t.Helper()
	rep, err := e.Do(args...)
	if err != nil {
		e.t.Fatalf("%.60q: %v", args, err)
	}
	return rep
}

// seen is a view as a client has it.
type seen struct {
	number, crc int64
	bytes       []byte
	tier        string
}

// views gets views; nil for null.
func (e *viewer) views(ns string, keys ...string) []*seen {
	e.t.Helper()
	rep := e.do(append([]string{"CASCADE.GETSHM", ns}, keys...)...)
	if len(rep.Elems) != len(keys) {
		e.t.Fatalf("GETSHM of %d keys has %d answers", len(keys), len(rep.Elems))
	}
	got := make([]*seen, len(keys))
	for i, v := range rep.Elems {
		if v.Null() {
			continue
		}
		at, size := v.Elems[1].Int, v.Elems[2].Int
		got[i] = &seen{number: v.Elems[0].Int, bytes: e.arena[at : at+size], crc: v.Elems[3].Int, tier: string(v.Elems[4].Str)}
	}
	return got
}

var filler = randomBytes(99, 1<<20)

// fill stores three times as much as a rig of 16 MiB has room for, and uses all
// of it, so that nothing else is worth keeping.
func (e *viewer) fill() {
	e.t.Helper()
	into := make([]byte, len(filler))
	for range 48 {
		e.filled++
		p, key := bytes.Clone(filler), fmt.Sprintf("fill-%p-%d", e, e.filled)
		binary.LittleEndian.PutUint64(p, rand.Uint64())
		if err := e.Set(key, p); err != nil {
			e.t.Fatal(err)
		}
		for range 2 {
			if _, err := e.Get(key, into); err != nil {
				e.t.Fatal(err)
			}
		}
	}
}

// expect compares a view with the bytes that were stored.
func (e *viewer) expect(v *seen, want []byte) {
	e.t.Helper()
	switch {
	case v == nil:
		e.t.Fatal("a miss")
	case !bytes.Equal(v.bytes, want):
		e.t.Error("the view has other bytes")
	case v.crc != int64(block.CRC(want)):
		e.t.Errorf("CRC32C %x, want %x", v.crc, block.CRC(want))
	}
}

func (r *rig) heldBytes() int64 {
	bytes, _, _, _ := r.srv.budget.Used()
	return bytes
}

// expectNothingHeld waits for what clients held to be given back.
func (r *rig) expectNothingHeld() {
	r.t.Helper()
	end := time.Now().Add(20 * time.Second)
	for r.heldBytes() != 0 && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	if n := r.heldBytes(); n != 0 {
		r.t.Errorf("%d bytes are still held", n)
	}
}

func TestViewsAreTheBlocksInPlace(t *testing.T) {
	r := newRig(t, 64<<20)
	e := r.viewer()
	var keys []string
	var want [][]byte
	for i, size := range []int{0, 1, 4095, 42 << 10, 2 << 20} {
		key, p := fmt.Sprint("k", i), randomBytes(uint64(i), size)
		if err := e.Set(key, p); err != nil {
			t.Fatal(err)
		}
		keys, want = append(keys, key), append(want, p)
	}
	got := e.views("redis/0", append(keys, "absent")...)
	for i, p := range want {
		e.expect(got[i], p)
		if got[i].tier != "shm" {
			t.Errorf("tier %q", got[i].tier)
		}
	}
	if got[len(keys)] != nil {
		t.Error("a view of an absent key")
	}
	if rep := e.do("CASCADE.RELEASE", "1", "2", "2", "77"); rep.Int != 2 {
		t.Errorf("RELEASE: %d views were held, want 2", rep.Int)
	}
	if rep := e.do("CASCADE.RELEASE", "3", "4", "5"); rep.Int != 3 || r.heldBytes() != 0 {
		t.Errorf("RELEASE: %d, %d bytes held", rep.Int, r.heldBytes())
	}
}

func TestArenaIsReadOnly(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	if _, err := unix.Mmap(e.fds[0], 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a mapping for writing: %v, want EACCES", err)
	}
	if _, err := unix.Pwrite(e.fds[0], []byte{1}, 0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a write: %v, want EBADF", err)
	}
}

// TestArenaAmongOthers: the descriptor comes with its own answer, and pipelined
// answers before and after it are whole.
func TestArenaAmongOthers(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	big := randomBytes(1, 1<<20)
	e.SendValue(2, big, "SET", "k")
	for range 3 {
		e.Send("GET", "k")
		e.Send("CASCADE.ARENA")
		e.Send("PING")
	}
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := e.ReceiveOK(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(big))
	for i := range 3 {
		if n, err := e.ReceiveInto(buf); err != nil || !bytes.Equal(buf[:n], big) {
			t.Fatal(n, err)
		}
		if rep, err := e.Receive(); err != nil || rep.Elems[0].Int != int64(len(e.arena)) || len(e.fds) < 2+i {
			t.Fatalf("%+v, %v, %d descriptors", rep, err, len(e.fds))
		}
		if rep, err := e.Receive(); err != nil || string(rep.Str) != "PONG" {
			t.Fatalf("%+v, %v", rep, err)
		}
	}
	for _, fd := range e.fds[1:] {
		_ = unix.Close(fd)
	}
}

func TestViewOutlivesItsName(t *testing.T) {
	for name, end := range map[string]func(*rig, *viewer){
		"deleted":  func(_ *rig, e *viewer) { e.do("DEL", "k") },
		"cleared":  func(_ *rig, e *viewer) { e.do("FLUSHDB") },
		"replaced": func(_ *rig, e *viewer) { e.do("SET", "k", "other") },
		"expired":  func(r *rig, e *viewer) { e.do("PEXPIRE", "k", "1"); time.Sleep(5 * time.Millisecond); r.store.Sweep() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 16<<20)
			e, other := r.viewer(), r.viewer()
			p := randomBytes(1, 100_000)
			if err := e.Set("k", p); err != nil {
				t.Fatal(err)
			}
			v := e.views("redis/0", "k")[0]
			end(r, other)
			other.fill()
			e.expect(v, p)
			if e.do("CASCADE.RELEASE", strconv.FormatInt(v.number, 10)).Int != 1 {
				t.Error("the view is lost")
			}
		})
	}
}

// TestViewedBlockIsNotEvicted: memory fills up three times, and the viewed block
// is still served.
func TestViewedBlockIsNotEvicted(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	p := randomBytes(1, 1<<20)
	if err := e.Set("k", p); err != nil {
		t.Fatal(err)
	}
	v := e.views("redis/0", "k")[0]
	e.fill()
	e.expect(v, p)
	if again := e.views("redis/0", "k")[0]; again == nil || &again.bytes[0] != &v.bytes[0] {
		t.Error("the viewed block has moved or gone")
	}
}

func TestBudgetOfViews(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	var keys []string
	for i := range 8 {
		keys = append(keys, fmt.Sprint("k", i))
		if err := e.Set(keys[i], randomBytes(uint64(i), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	count := func(vs []*seen) (n int) {
		for _, v := range vs {
			if v != nil {
				n++
			}
		}
		return n
	}
	first := count(e.views("redis/0", keys...))
	if most := int(r.srv.budget.Limit() >> 20); first != most || most < 3 {
		t.Errorf("%d views of 1 MiB, want %d", first, most)
	}
	other := r.viewer()
	if n := count(other.views("redis/0", keys...)); n != 0 {
		t.Errorf("%d views beyond the budget", n)
	}
	e.Close()
	r.expectNothingHeld()
	if n := count(other.views("redis/0", keys...)); n != first {
		t.Errorf("%d views once the other client is gone, want %d", n, first)
	}
	if other.do("RESET"); r.heldBytes() != 0 {
		t.Error("RESET gives nothing back")
	}
}

// TestCorruptBlockHasNoView: GETSHM has checked what it answers.
func TestCorruptBlockHasNoView(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	if err := e.Set("k", randomBytes(1, 300_000)); err != nil {
		t.Fatal(err)
	}
	r.flip("k")
	if v := e.views("redis/0", "k")[0]; v != nil {
		t.Error("a view of a corrupt block")
	}
}

func TestOnlyTheOwnUserSharesMemory(t *testing.T) {
	r := newRig(t, 16<<20)
	for _, args := range [][]string{
		{"CASCADE.ARENA"}, {"CASCADE.GETSHM", "ns", "k"}, {"CASCADE.RELEASE", "1"}, {"CASCADE.CONTAINS", "ns", "k"},
	} {
		_, err := r.client("tcp").Do(args...)
		var se *resp.ServerError
		if !errors.As(err, &se) || se.Code() != "NOPERM" {
			t.Errorf("%v over TCP: %v, want NOPERM", args, err)
		}
	}
}

func TestContains(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	args, want := []string{"CASCADE.CONTAINS", "redis/0"}, []byte{}
	for i := range 5000 {
		var name [4]byte
		binary.BigEndian.PutUint32(name[:], uint32(i))
		args = append(args, string(name[:])+strings.Repeat("x", i%60))
		want = append(want, 0)
		if i%3 == 0 {
			want[i] = 1
			if err := e.Set(args[2+i], []byte("v")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rep := e.do(args...); !bytes.Equal(rep.Str, want) {
		t.Error("CONTAINS answers otherwise")
	}
	args[1] = "elsewhere"
	if rep := e.do(args...); !bytes.Equal(rep.Str, make([]byte, 5000)) {
		t.Error("CONTAINS finds keys in a namespace that is empty")
	}
}
