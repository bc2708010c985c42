package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
	"cascadekv/internal/shmindex"
)

// handed sends a command whose answer comes with a descriptor.
func (e *viewer) handed(args ...string) (fd int, size int64) {
	e.t.Helper()
	before := len(e.fds)
	rep := e.do(args...)
	if len(e.fds) != before+1 || len(rep.Elems) != 1 {
		e.t.Fatalf("%q: %+v with %d descriptors", args, rep, len(e.fds)-before)
	}
	fd = e.fds[before]
	e.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, rep.Elems[0].Int
}

// TestIndexHandedOver reads a block by the table alone, and tells of it.
func TestIndexHandedOver(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	value := randomBytes(7, 50_000)
	if err := e.Set("k", value); err != nil {
		t.Fatal(err)
	}
	fd, size := e.handed("CASCADE.INDEX")
	x, err := shmindex.OpenReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != size {
		t.Errorf("a table of %d bytes, told %d (%v)", st.Size, size, err)
	}
	entry, place, ok := x.Lookup(shmindex.FingerprintOf("redis/0", "k"))
	if !ok || entry.Kind != shmindex.InArena || !bytes.Equal(e.arena[entry.Offset:entry.Offset+uint64(entry.Size)], value) {
		t.Fatalf("%+v, %v", entry, ok)
	}
	if !x.Alive() || !x.Final() {
		t.Errorf("alive %v, final %v", x.Alive(), x.Final())
	}

	rings := descriptorsOf("memfd:cascade-touches")
	ring, size := e.handed("CASCADE.INDEX", "touches")
	again, _ := e.handed("CASCADE.INDEX", "TOUCHES")
	mem, err := unix.Mmap(ring, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	same, err := unix.Mmap(again, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(same)
	binary.LittleEndian.PutUint64(mem[128:], shmindex.Touch(1, place))
	binary.LittleEndian.PutUint64(mem[64:], 1)
	if same[64] != 1 {
		t.Error("a connection has two rings")
	}
	before := r.store.Stats().Hits
	e.Close()
	eventually(t, "the touch is taken in when the connection ends", func() bool { return r.store.Stats().Hits == before+1 })
	// What is left are the client's own descriptors, which are of this process too.
	eventually(t, "the ring is given back", func() bool { return descriptorsOf("memfd:cascade-touches") == rings+2 })
}

// TestHoldsHandedOver: a connection has one table of holds; what it holds is told
// as views, and given back when it ends.
func TestHoldsHandedOver(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	value := randomBytes(7, 50_000)
	if err := e.Set("k", value); err != nil {
		t.Fatal(err)
	}
	index, _ := e.handed("CASCADE.INDEX")
	x, err := shmindex.OpenReader(index)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	tables := descriptorsOf("memfd:cascade-holds")
	open := func(words ...string) *shmindex.Holds {
		fd, size := e.handed(words...)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size != size {
			t.Errorf("holds of %d bytes, told %d (%v)", st.Size, size, err)
		}
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		h, err := shmindex.OpenHolds(own, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		return h
	}
	h, same := open("CASCADE.INDEX", "holds"), open("CASCADE.INDEX", "HOLDS")
	if h.Allowance() == 0 {
		t.Error("nothing may be held")
	}
	v := shmindex.Viewer{Index: x, Holds: h, Arena: e.arena}
	view, ok := v.View(shmindex.FingerprintOf("redis/0", "k"))
	if !ok || !same.Has(int64(view.Offset)) {
		t.Fatalf("held: %v; a connection has two tables of holds", ok)
	}
	if held := r.srv.Snapshot().Held; held.Views != 1 || held.Bytes != 50_000 {
		t.Errorf("told as %+v", held)
	}
	e.do("DEL", "k")
	e.do("RESET")
	other := r.viewer()
	other.fill()
	if !bytes.Equal(view.Bytes, value) {
		t.Error("the block has changed while it was held")
	}
	e.Close()
	eventually(t, "nothing is held", func() bool { return r.srv.Snapshot().Held.Views == 0 })
	// What is left are the client's own descriptors: two as they came, two of the mappings.
	eventually(t, "the holds are given back", func() bool { return descriptorsOf("memfd:cascade-holds") == tables+4 })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// descriptorsOf counts this process's descriptors of a file.
func descriptorsOf(name string) (n int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + entry.Name()); strings.Contains(to, name) {
			n++
		}
	}
	return n
}

func TestIndexIsForTheOwnUser(t *testing.T) {
	r := newRig(t, 16<<20)
	for _, args := range [][]string{{"CASCADE.INDEX"}, {"CASCADE.INDEX", "TOUCHES"}, {"CASCADE.INDEX", "HOLDS"}} {
		_, err := r.client("tcp").Do(args...)
		var se *resp.ServerError
		if !errors.As(err, &se) || se.Code() != "NOPERM" {
			t.Errorf("%v over TCP: %v, want NOPERM", args, err)
		}
	}
	if _, err := r.viewer().Do("CASCADE.INDEX", "nonsense"); err == nil || !strings.Contains(fmt.Sprint(err), "syntax") {
		t.Errorf("nonsense: %v", err)
	}
}
