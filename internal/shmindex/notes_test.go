package shmindex

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
)

// goldenNote is the example of docs/format.md §6.3, which the tests of clients/python have too.
const goldenNote = "0300000207000000" + "1581e97df4102211" + "0500000000000000" + "0100000000000000" +
	"090000002b2dfe27" + "cf4540af6b5e6599" + "7eab365500000000"

func golden() *Note {
	prints := block.Fingerprints("ns", "a", "b")
	return &Note{Kind: Probed, Space: 0, After: 7, At: 0x112210f47de98115, Table: 5, Keys: []NotedKey{{Here: true, Place: 9}, {Print: prints[0]}, {Print: prints[1]}}}
}

func bytesOf(words []uint64) (p []byte) {
	for _, w := range words {
		p = binary.LittleEndian.AppendUint64(p, w)
	}
	return p
}

func TestGoldenNote(t *testing.T) {
	words := AppendNote(nil, golden())
	if got := hex.EncodeToString(bytesOf(words)); got != goldenNote {
		t.Errorf("%s, want %s", got, goldenNote)
	}
	var n Note
	if used := decodeNote(append(words, 1, 2, 3), &n); used != len(words) || !reflect.DeepEqual(&n, golden()) {
		t.Errorf("%d of %d words: %+v", used, len(words), n)
	}
}

// client is the other side of a ring.
type client struct {
	mem            []byte
	touched, words uint64
}

func newClient(t testing.TB) (*Ring, *client) {
	t.Helper()
	r, err := NewRing()
	if err != nil {
		t.Fatal(err)
	}
	fd, size := r.File()
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem); r.Close() })
	c := &client{mem: mem}
	c.name(0, "ns")
	return r, c
}

func (c *client) name(count int, ns string) {
	p := c.mem[128+8*16384+256*count:]
	copy(p[28:256], ns)
	binary.LittleEndian.PutUint32(p[24:], uint32(len(ns)))
}

func (c *client) touch(v uint64) {
	binary.LittleEndian.PutUint64(c.mem[128+8*(c.touched%16384):], v)
	c.touched++
	binary.LittleEndian.PutUint64(c.mem[64:], c.touched)
}

func (c *client) write(words ...uint64) {
	for _, w := range words {
		binary.LittleEndian.PutUint64(c.mem[128+8*16384+256*16+8*(c.words%32768):], w)
		c.words++
	}
	binary.LittleEndian.PutUint64(c.mem[80:], c.words)
}

func (c *client) note(keys ...NotedKey) {
	c.write(AppendNote(nil, &Note{Kind: Contained, After: uint32(c.touched), At: 1, Table: 1, Keys: keys})...)
}

// drained is what a ring passes on: a text for each touch and note.
func drained(r *Ring) []string {
	all, _ := drainedMost(r, math.MaxInt)
	return all
}

func drainedMost(r *Ring, most int) (all []string, left int) {
	left = r.Drain(most, func(touches []uint64, lost uint64) {
		for _, v := range touches {
			all = append(all, fmt.Sprint("touch ", v))
		}
		if lost > 0 {
			all = append(all, fmt.Sprint("lost ", lost))
		}
	}, func(ns string, n *Note) {
		all = append(all, fmt.Sprint("note ", ns, " ", n.Keys[0].Print, " of ", len(n.Keys)))
	})
	return all, left
}

// TestDrainInParts: a bound cuts between touches and notes, changes no order, and loses nothing.
func TestDrainInParts(t *testing.T) {
	want := []string{
		"touch 10", "touch 11", "note ns 1 of 3", "touch 12", "note ns 2 of 1", "note ns 3 of 1", "touch 13", "touch 14",
	}
	for most := 1; most < 12; most++ {
		r, c := newClient(t)
		c.touch(10)
		c.touch(11)
		c.note(NotedKey{Print: 1}, NotedKey{Print: 8}, NotedKey{Print: 9})
		c.touch(12)
		c.note(NotedKey{Print: 2})
		c.note(NotedKey{Print: 3})
		c.touch(13)
		c.touch(14)
		var got []string
		for calls := 0; r.News() && calls < 20; calls++ {
			some, left := drainedMost(r, most)
			if len(some) > most || len(some) == 0 || left >= most {
				t.Errorf("%q are passed on at once, %d of %d left", some, left, most)
			}
			got = append(got, some...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d at once: %q, want %q", most, got, want)
		}
	}
}

func wantDrained(t *testing.T, r *Ring, want ...string) {
	t.Helper()
	if news := r.News(); news != (len(want) > 0) {
		t.Errorf("news: %v", news)
	}
	if got := drained(r); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNotesAndTouchesComeInOrder, once each.
func TestNotesAndTouchesComeInOrder(t *testing.T) {
	r, c := newClient(t)
	wantDrained(t, r)
	if n := binary.LittleEndian.Uint32(c.mem[76:]); n != 32768 {
		t.Errorf("room for %d words", n)
	}
	c.note(NotedKey{Print: 1})
	c.touch(10)
	c.touch(11)
	c.note(NotedKey{Print: 2}, NotedKey{Here: true, Place: 3})
	c.note(NotedKey{Print: 3})
	c.touch(12)
	wantDrained(t, r, "note ns 1 of 1", "touch 10", "touch 11", "note ns 2 of 2", "note ns 3 of 1", "touch 12")
	wantDrained(t, r)
	c.touch(13)
	c.note(NotedKey{Print: 4})
	wantDrained(t, r, "touch 13", "note ns 4 of 1")
	for i := range uint64(100_000) { // around the ends
		c.touch(i)
		c.note(NotedKey{Print: i + 1}, NotedKey{Print: i}, NotedKey{Here: true})
		if got := drained(r); !slices.Equal(got, []string{fmt.Sprint("touch ", i), fmt.Sprint("note ns ", i+1, " of 3")}) {
			t.Fatalf("%d: %q", i, got)
		}
	}
}

// TestTooManyNotesAreLost: all of them, and none that comes later, nor a touch.
func TestTooManyNotesAreLost(t *testing.T) {
	r, c := newClient(t)
	keys := make([]NotedKey, 4096)
	for _, n := range []int{8, 6} { // of six the client may be overwriting the first
		for i := range n {
			keys[0].Print = uint64(i + 1)
			c.note(keys...)
		}
		c.touch(7)
		wantDrained(t, r, "touch 7")
	}
	c.note(NotedKey{Print: 1})
	wantDrained(t, r, "note ns 1 of 1")
	for i := range 5 {
		keys[0].Print = uint64(i + 1)
		c.note(keys...)
	}
	if got := drained(r); len(got) != 5 {
		t.Errorf("of five long notes %q", got)
	}
}

// TestNonsenseNotes: what is no note is passed over with what follows; the next is read.
func TestNonsenseNotes(t *testing.T) {
	good := func() []uint64 { return AppendNote(nil, golden()) }
	change := func(word int, v uint64) []uint64 { w := good(); w[word] ^= v; return w }
	for name, words := range map[string][]uint64{
		"no keys":           change(0, 3),
		"too many keys":     change(0, 1<<15),
		"no kind":           change(0, 2<<24),
		"an unknown kind":   change(0, 4<<24),
		"no such namespace": change(0, 16<<16),
		"a count of nobody": change(0, 1<<16),
		"a larger table":    change(2, 1<<32),
		"bits of no key":    change(3, 1<<3),
		"more room":         change(6, 1<<63),
		"too short":         good()[:6],
		"a head":            good()[:2],
	} {
		t.Run(name, func(t *testing.T) {
			r, c := newClient(t)
			c.write(words...)
			if got := drained(r); got != nil {
				t.Errorf("%q", got)
			}
			c.note(NotedKey{Print: 5})
			wantDrained(t, r, "note ns 5 of 1")
		})
	}
	r, c := newClient(t)
	for _, head := range []uint64{1 << 63, 1<<64 - 1, 5, 0, 1 << 20} {
		binary.LittleEndian.PutUint64(c.mem[80:], head)
		drained(r)
	}
	c.words = 1 << 20
	c.note(NotedKey{Print: 6})
	wantDrained(t, r, "note ns 6 of 1")
	c.write(AppendNote(nil, &Note{Kind: Contained, After: 1 << 31, Keys: []NotedKey{{Print: 1}}})...)
	c.touch(1)
	wantDrained(t, r, "note ns 1 of 1", "touch 1")
}

// FuzzNote: whatever a client writes, what is taken for a note is one, and a ring passes on no more
// than it holds.
func FuzzNote(f *testing.F) {
	f.Add(bytesOf(AppendNote(nil, golden())), uint64(7))
	f.Add(bytesOf(AppendNote(AppendNote(nil, golden()), golden())), uint64(14))
	f.Add(bytesOf(AppendNote(nil, golden())), uint64(40_000))
	f.Fuzz(func(t *testing.T, p []byte, head uint64) {
		var words []uint64
		for ; len(p) >= 8; p = p[8:] {
			words = append(words, binary.LittleEndian.Uint64(p))
		}
		var n Note
		if used := decodeNote(words, &n); used > 0 && !slices.Equal(AppendNote(nil, &n), words[:used]) {
			t.Fatalf("%x is taken for %+v", words, n)
		}
		r, c := newClient(t)
		c.write(words[:min(len(words), 40_000)]...)
		binary.LittleEndian.PutUint64(c.mem[80:], head)
		keys := 0
		r.Drain(math.MaxInt, func(touches []uint64, lost uint64) {}, func(_ string, n *Note) { keys += len(n.Keys) })
		if keys > 2*32768 {
			t.Fatalf("%d keys", keys)
		}
	})
}

// TestNotesAreWhole: of a client that writes faster than its ring is read, each note that is passed on is
// one that it wrote.
func TestNotesAreWhole(t *testing.T) {
	r, c := newClient(t)
	store := func(at int, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&c.mem[at])), v) }
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(1); !stop.Load(); i++ {
			keys := slices.Repeat([]NotedKey{{Print: i}}, int(1+i*7%3000))
			for _, w := range AppendNote(nil, &Note{Kind: Contained, At: int64(i), Keys: keys}) {
				store(128+8*16384+256*16+8*int(c.words%32768), w)
				c.words++
			}
			store(80, c.words)
			if i%7 == 0 {
				runtime.Gosched()
			}
		}
	}()
	last := int64(0)
	for whole := 0; whole < 500 && !t.Failed(); {
		r.Drain(math.MaxInt, func([]uint64, uint64) {}, func(_ string, n *Note) {
			i := uint64(n.At)
			if n.At <= last || len(n.Keys) != int(1+i*7%3000) || slices.ContainsFunc(n.Keys, func(k NotedKey) bool { return k.Print != i }) {
				t.Errorf("note %d behind %d has %d keys, the first %+v", n.At, last, len(n.Keys), n.Keys[0])
			}
			last = n.At
			whole++
		})
		runtime.Gosched()
	}
	stop.Store(true)
	<-done
}
