package shmindex

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newTable(t testing.TB, o Options) (*Table, *Reader) {
	t.Helper()
	table, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	fd, size, err := table.File()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := OpenReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if int64(len(r.mem)) != size {
		t.Fatalf("%d bytes, told %d", len(r.mem), size)
	}
	return table, r
}

// TestGolden holds docs/format.md §6 to the letter.
func TestGolden(t *testing.T) {
	table, _ := newTable(t, Options{Names: 1, Number: 3, Arena: 4 << 20, Tiers: []string{"hbm", "shm"}})
	f := FingerprintOf("model", "key")
	if got := hex.EncodeToString(f[:]); got != "45129d522ba644b912db5dde2e22714f" {
		t.Errorf("fingerprint %s", got)
	}
	place, err := table.Insert(f, Entry{Kind: InArena, Tier: 1, Expires: 1 << 60, Size: 42, CRC: 0x01020304, Offset: 0x2000, Record: 0x3040, UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	table.SetFinal(true)
	table.SetLoads(Load{10 * time.Microsecond, .2}, Load{PerByte: -1}, Load{Latency: time.Second, PerByte: 3})
	le := binary.LittleEndian
	want := make([]byte, headerBytes+16*64*9)
	copy(want, "CASCIDX1\x02\x00\x00\x00\x10\x00\x00\x00")
	le.PutUint64(want[16:], uint64(len(want)))
	le.PutUint64(want[24:], 3)
	le.PutUint64(want[32:], 4<<20)
	copy(want[64:68], table.mem[64:68]) // the thread's id
	le.PutUint32(want[68:], 1)
	le.PutUint32(want[72:], 1)
	copy(want[128:], "hbm")
	copy(want[144:], "shm")
	le.PutUint64(want[256:], 10_000)
	le.PutUint64(want[264:], 200_000)
	le.PutUint64(want[288:], 1e9)
	le.PutUint64(want[296:], 3e6)
	copy(want[headerBytes+8*place:], f[:8])
	e := want[headerBytes+16*64+64*place:]
	copy(e, "\x02\x00\x00\x00\x01\x00\x01\x00")
	copy(e[8:], f[:])
	le.PutUint64(e[24:], 1<<60)
	copy(e[32:], "\x2a\x00\x00\x00\x04\x03\x02\x01")
	le.PutUint64(e[40:], 0x2000)
	le.PutUint64(e[48:], 0x3040)
	le.PutUint64(e[56:], 7)
	if !bytes.Equal(table.mem, want) {
		for i := range want {
			if table.mem[i] != want[i] {
				t.Fatalf("byte %d is %#x, not %#x", i, table.mem[i], want[i])
			}
		}
	}
	if b, _ := f.buckets(15); place/8 != b {
		t.Errorf("place %d is not in the first of two empty buckets, %d", place, b)
	}
}

// A reader refuses versions and features that it does not know.
func TestVersionsAndFeatures(t *testing.T) {
	table, _ := newTable(t, Options{Names: 1})
	for _, c := range []struct {
		version, features uint32
		known             bool
	}{{1, 0, true}, {2, 0, true}, {0, 0, false}, {3, 0, false}, {2, 1, false}, {2, 1 << 31, false}} {
		mem := bytes.Clone(table.mem)
		binary.LittleEndian.PutUint32(mem[8:], c.version)
		binary.LittleEndian.PutUint32(mem[40:], c.features)
		if _, err := newReader(mem); (err == nil) != c.known || err != nil && !errors.Is(err, ErrNoTable) {
			t.Errorf("version %d, features %#x: %v", c.version, c.features, err)
		}
	}
}

// TestModel runs random changes on a table and a map.
func TestModel(t *testing.T) {
	table, r := newTable(t, Options{Names: 300})
	type known struct {
		place uint32
		entry Entry
	}
	model := map[Fingerprint]known{}
	var prints []Fingerprint
	for i := range 600 {
		prints = append(prints, FingerprintOf("ns", fmt.Sprint(i)))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	full := 0
	for range 60_000 {
		f := prints[rng.IntN(len(prints))]
		e := Entry{Kind: Kind(1 + rng.IntN(3)), Tier: uint16(rng.IntN(8)), Expires: rng.Int64(), Size: rng.Uint32(), CRC: rng.Uint32(), Offset: rng.Uint64(), Record: rng.Uint64(), UID: rng.Uint64()}
		k, ok := model[f]
		switch {
		case ok && rng.IntN(2) == 0:
			table.Remove(k.place)
			delete(model, f)
		case ok:
			table.Update(k.place, e)
			model[f] = known{k.place, e}
		default:
			place, err := table.Insert(f, e)
			if errors.Is(err, ErrFull) {
				full++
				continue
			}
			model[f] = known{place, e}
		}
	}
	if full > 6000 {
		t.Errorf("%d inserts of names that fit were refused", full)
	}
	for _, f := range prints {
		k, ok := model[f]
		e, place, found := r.Lookup(f)
		if found != ok || found && (e != k.entry || place != k.place) {
			t.Fatalf("%x: %+v at %d, %v; want %+v, %v", f, e, place, found, k, ok)
		}
		if ok && table.Fingerprint(place) != f {
			t.Fatalf("place %d is of %x", place, table.Fingerprint(place))
		}
	}
	if table.used != len(model) {
		t.Errorf("%d used, want %d", table.used, len(model))
	}
}

func TestFull(t *testing.T) {
	table, r := newTable(t, Options{Names: 1})
	in, crowded := 0, false
	for i := range 10_000 {
		if _, err := table.Insert(FingerprintOf("", fmt.Sprint(i)), Entry{Kind: Here}); err == nil {
			in++
			if table.Crowded() != (in*10 > table.Places()*7) {
				t.Fatalf("crowded %v with %d of %d", table.Crowded(), in, table.Places())
			}
			crowded = crowded || table.Crowded()
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if in != table.Places() || !crowded {
		t.Errorf("%d names in %d places", in, table.Places())
	}
	if _, _, ok := r.Lookup(FingerprintOf("", "none")); ok {
		t.Error("a name that is not there is found in a full table")
	}
}

// TestNamesDoNotRunTogether: namespace and key are told apart, and padding of a
// namespace is not taken for a part of it.
func TestNamesDoNotRunTogether(t *testing.T) {
	seen := map[Fingerprint][2]string{}
	for _, n := range [][2]string{{"", "ab"}, {"a", "b"}, {"ab", "\x00"}, {"ab\x00", "\x00"}, {"ab", "\x00\x00"}, {string(make([]byte, 62)), "a"}, {string(make([]byte, 61)), "a"}, {string(make([]byte, 63)), "a"}, {string(make([]byte, 1024)), string(make([]byte, 1024))}} {
		f := FingerprintOf(n[0], n[1])
		if other, ok := seen[f]; ok {
			t.Errorf("%q and %q have one fingerprint", n, other)
		}
		seen[f] = n
	}
}

// TestReadersSeeWholeEntries: while entries are written, and places change hands,
// a reader sees one version of the right name or none.
func TestReadersSeeWholeEntries(t *testing.T) {
	table, r := newTable(t, Options{Names: 1})
	var prints []Fingerprint
	for i := range 40 {
		prints = append(prints, FingerprintOf("ns", fmt.Sprint(i)))
	}
	of := func(i int, v uint64) Entry {
		x := uint64(i)<<32 | v&(1<<32-1)
		return Entry{Kind: InArena, Tier: uint16(v), Expires: int64(x), Size: uint32(v), CRC: uint32(v), Offset: x, Record: x, UID: x}
	}
	var stop atomic.Bool
	var seen atomic.Int64
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(g)))
			for !stop.Load() || seen.Load() == 0 {
				i := rng.IntN(len(prints))
				if e, _, ok := r.Lookup(prints[i]); ok {
					seen.Add(1)
					if e != of(i, uint64(e.Size)) || e.UID>>32 != uint64(i) {
						t.Errorf("%d: a mixed entry %+v", i, e)
						return
					}
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(5, 6))
	places := map[int]uint32{}
	for v := range uint64(200_000) {
		i := rng.IntN(len(prints))
		place, ok := places[i]
		switch {
		case !ok:
			place, err := table.Insert(prints[i], of(i, v))
			if err != nil {
				t.Fatal(err)
			}
			places[i] = place
		case v%3 == 0:
			table.Remove(place)
			delete(places, i)
		default:
			table.Update(place, of(i, v))
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestEndOfATable(t *testing.T) {
	table, r := newTable(t, Options{Names: 1})
	if !r.Alive() || r.Final() {
		t.Fatalf("a new table: alive %v, final %v", r.Alive(), r.Final())
	}
	table.SetFinal(true)
	if !r.Final() {
		t.Error("not final")
	}
	next, err := New(Options{Names: 1})
	if err != nil {
		t.Fatal(err)
	}
	fd, _, err := next.File()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	nr, err := OpenReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer nr.Close()
	next.Invalidate()
	if nr.Alive() || !r.Alive() {
		t.Errorf("the superseded table is alive: %v, the other: %v", nr.Alive(), r.Alive())
	}
}

// TestOnlyTheRankWrites: the descriptor that clients get can not be mapped for
// writing, and the file keeps its size.
func TestOnlyTheRankWrites(t *testing.T) {
	table, _ := newTable(t, Options{Names: 1})
	fd, size, err := table.File()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("mapped for writing")
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(again)
		if _, err := unix.Mmap(again, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			t.Error("mapped for writing when it was opened anew")
		}
		if _, err := unix.Pwrite(again, []byte("x"), 0); err == nil {
			t.Error("written to when it was opened anew")
		}
	}
	if err := unix.Ftruncate(table.fd, size/2); err == nil {
		t.Error("it shrinks")
	}
}

func TestRing(t *testing.T) {
	r, err := NewRing()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	le := binary.LittleEndian
	head := func(n uint64) { le.PutUint64(r.mem[ringHead:], n) }
	touch := func(i, v uint64) { le.PutUint64(r.mem[ringPlace+8*(i%RingSlots):], v) }
	for i := range uint64(10) {
		touch(i, Touch(2, uint32(i)))
	}
	head(10)
	var got []uint64
	var lost uint64
	drain := func() {
		got, lost = nil, 0
		r.Drain(math.MaxInt, func(touches []uint64, l uint64) { got, lost = slices.Clone(touches), l }, func(string, *Note) { t.Error("a note") })
	}
	drain()
	if len(got) != 10 || lost != 0 || got[9] != 2<<32|9 {
		t.Errorf("%d touches, %d lost: %x", len(got), lost, got)
	}
	if drain(); len(got) != 0 || lost != 0 {
		t.Errorf("again %d, %d", len(got), lost)
	}
	for i := range uint64(RingSlots) {
		touch(10+5+i, i)
	}
	head(10 + 5 + RingSlots)
	if drain(); len(got) != RingSlots || lost != 5 || got[0] != 0 || got[RingSlots-1] != RingSlots-1 {
		t.Errorf("%d touches, %d lost", len(got), lost)
	}
	for _, n := range []uint64{0, 1 << 63, 1<<64 - 1, 5} { // nonsense
		head(n)
		if drain(); len(got) > RingSlots || lost > 1<<32 {
			t.Errorf("head %d: %d touches, %d lost", n, len(got), lost)
		}
	}
}

// TestRingCounts reads counts that are written as docs/format.md §6.3 has them.
func TestRingCounts(t *testing.T) {
	r, err := NewRing()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, size := r.File()
	if size != 128+8*16384+256*16+8*32768 {
		t.Errorf("%d bytes", size)
	}
	client, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(client)
	le := binary.LittleEndian
	if n := le.Uint32(client[72:]); n != 16 {
		t.Errorf("counts of %d namespaces", n)
	}
	write := func(i int, name string, length uint32, asked, found, missed uint64) {
		p := client[128+8*16384+256*i:]
		copy(p[28:256], name)
		le.PutUint64(p, asked)
		le.PutUint64(p[8:], found)
		le.PutUint64(p[16:], missed)
		le.PutUint32(p[24:], length)
	}
	want := func(what string, want map[string]Lookups) {
		t.Helper()
		got := map[string]Lookups{}
		r.Lookups(func(ns string, l Lookups) { got[ns] = l })
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	long := strings.Repeat("l", 228)
	want("at first", nil)
	write(0, "a", 1, 10, 3, 2)
	write(15, long, 228, 1, 1, 0)
	want("counted", map[string]Lookups{"a": {10, 3, 2}, long: {1, 1, 0}})
	want("again", nil)
	write(0, "a", 1, 15, 3, 3)
	want("more", map[string]Lookups{"a": {5, 0, 1}})
	write(0, "b", 1, 7, 0, 0)
	want("of another namespace", map[string]Lookups{"b": {7, 0, 0}})
	write(0, "b", 1, 1<<63, 5, 0)
	write(1, "c", 229, 1, 1, 1)
	write(2, "c", 1<<32-1, 1, 1, 1)
	write(3, "c", 0, 1, 1, 1)
	want("nonsense", map[string]Lookups{"b": {0, 5, 0}})
}

// FuzzReader: whatever is in the file, a reader stays in it.
func FuzzReader(f *testing.F) {
	table, err := New(Options{Names: 1})
	if err != nil {
		f.Fatal(err)
	}
	defer table.Close()
	print := FingerprintOf("ns", "key")
	if _, err := table.Insert(print, Entry{Kind: Here}); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Clone(table.mem))
	f.Add(table.mem[:headerBytes:headerBytes])
	f.Fuzz(func(t *testing.T, p []byte) {
		mem := make([]byte, len(p)+8)
		mem = mem[:copy(mem, p)] // aligned
		r, err := newReader(mem)
		if err != nil {
			if !errors.Is(err, ErrNoTable) {
				t.Fatal(err)
			}
			return
		}
		r.Alive()
		r.Lookup(print)
	})
}

func TestMain(m *testing.M) {
	if how := os.Getenv("SHMINDEX_TEST_DIES"); how != "" {
		dies(how)
	}
	os.Exit(m.Run())
}
