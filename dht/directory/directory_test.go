package directory

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/race"
)

var start = time.Unix(1_700_000_000, 0)

// script runs the scenario language of TestScenarios against a directory.
type script struct {
	t   *testing.T
	d   *Directory
	now time.Time
}

// statement reads "A put 10 X mem seg v 3": rank A says that it has the put
// stamped 10 with the bytes X in memory and in a segment, in version 3. X? is a
// provisional id of the same bytes as X. "A none v 4" is a withdrawal.
func statement(t *testing.T, words []string) Statement {
	t.Helper()
	s := Statement{Name: block.Name{Namespace: "ns", Key: "k"}, Owner: rank(words[0]), Incarnation: 1}
	for i := 1; i < len(words); i++ {
		number := func() uint64 {
			i++
			n, err := strconv.ParseUint(words[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		switch w := words[i]; w {
		case "none":
		case "put":
			s.Name.Seq = number()
		case "v":
			s.Version = number()
		case "life":
			s.Incarnation = number()
		case "until":
			s.Name.Expires = start.Add(time.Duration(number()) * time.Second)
		case "mem":
			s.Memory = &Memory{Offset: 4096, Generation: s.Version}
		case "seg":
			s.Segment = &Segment{Path: "of " + words[0], Offset: 64}
		default:
			text := []byte(strings.TrimSuffix(w, "?"))
			s.Info = block.Info{ID: block.Sum(block.Bits128, text), Size: 1, CRC: block.CRC(text)}
			if strings.HasSuffix(w, "?") {
				s.Info.ID = block.Provisional(uint64(s.Owner) + 1)
			}
		}
	}
	return s
}

func rank(name string) fabric.Rank { return fabric.Rank(name[0] - 'A') }

func tell(stale []Stale) string {
	var b strings.Builder
	for _, s := range stale {
		fmt.Fprintf(&b, "%c<%d ", 'A'+s.Owner, s.Before)
	}
	return strings.TrimSpace(b.String())
}

// found writes a look-up's result as "A:mem+seg C:seg".
func found(d *Directory, now time.Time) string {
	f, ok := d.Lookup("ns", "k", now)
	if ok != (len(f.Copies) > 0) {
		return "found, but no copies"
	}
	var out []string
	for _, s := range f.Copies {
		var where []string
		if s.Memory != nil {
			where = append(where, "mem")
		}
		if s.Segment != nil {
			where = append(where, "seg")
		}
		out = append(out, fmt.Sprintf("%c:%s", 'A'+s.Owner, strings.Join(where, "+")))
	}
	return strings.Join(out, " ")
}

// step runs one line and returns what it printed.
func (s *script) step(line string) string {
	w := strings.Fields(line)
	n := func(i int) uint64 {
		v, err := strconv.ParseUint(w[i], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return v
	}
	switch w[0] {
	case "find":
		return found(s.d, s.now)
	case "len":
		return fmt.Sprint(s.d.Len())
	case "bury":
		return tell(s.d.Delete("ns", "k", n(1), s.now))
	case "wait":
		s.now = s.now.Add(time.Duration(n(1)) * time.Second)
		longer := time.Duration(0)
		if len(w) > 2 { // "longer"
			longer = time.Hour
		}
		s.d.Sweep(s.now, longer)
		return ""
	case "lost":
		s.d.Lost(map[fabric.Rank]uint64{rank(w[1]): n(2)})
		return ""
	case "refute":
		s.d.Invalidate(statement(s.t, w[1:]))
		return ""
	case "clear":
		s.d.Clear(w[1], w[1] == "*", math.MaxUint64)
		return ""
	case "each":
		var all []string
		s.d.Each(func(st Statement) bool { all = append(all, string(rune('A'+st.Owner))); return true })
		return strings.Join(all, " ")
	}
	return tell(s.d.Apply(statement(s.t, w), s.now))
}

func TestScenarios(t *testing.T) {
	for name, lines := range map[string]string{
		"announce and withdraw": `
			find                      =
			A none v 1                =
			len                       = 0
			A put 10 X mem v 2        =
			find                      = A:mem
			A put 10 X mem seg v 3    =
			find                      = A:mem+seg
			A none v 4                =
			find                      =
			len                       = 0`,
		"memory first, three at most": `
			A put 10 X seg v 1        =
			B put 10 X mem v 1        =
			find                      = B:mem A:seg
			C put 10 X mem seg v 1    =
			D put 10 X mem v 1        =
			E put 10 X mem v 1        =
			find                      = B:mem C:mem+seg D:mem`,
		"old statements do no harm": `
			A put 10 X mem v 5        =
			B put 10 X mem v 5        =
			A none v 4                =
			find                      = A:mem B:mem
			A none v 6                =
			A put 10 X mem v 5        =
			find                      = B:mem`,
		"a restarted rank counts versions anew": `
			A put 10 X mem v 500      =
			A put 10 X seg v 3 life 2 =
			find                      = A:seg
			A put 10 X mem v 900      =
			find                      = A:seg`,
		"a put that came and went unseen": `
			A put 10 X mem v 1        =
			C put 10 X mem v 1        =
			B put 20 none v 1         = A<20 C<20
			find                      =
			len                       = 0`,
		"a put that was seen and goes takes no older copy of its bytes along": `
			A put 10 X mem v 1        =
			B put 20 X mem v 1        =
			find                      = A:mem B:mem
			B put 20 none v 2         =
			find                      = A:mem
			B put 20 none v 3         =
			find                      = A:mem`,
		"overwrite": `
			A put 10 X mem v 1        =
			B put 10 X mem v 1        =
			C put 20 Y mem v 1        = A<20 B<20
			find                      = C:mem
			C put 20 Y mem v 1        = A<20 B<20
			A none v 2                = B<20
			B put 10 X mem seg v 2    = B<20
			find                      = C:mem
			each                      = C
			B put 30 Z mem v 3        = C<30
			find                      = B:mem`,
		"what was replaced does not come back when its successor leaves": `
			A put 10 X mem seg v 1    =
			B put 20 Y mem v 1        = A<20
			C put 20 Y mem v 1        = A<20
			B none v 2                = A<20
			find                      = C:mem
			C none v 2                = A<20
			find                      =
			each                      =`,
		"the older put comes last": `
			C put 20 Y mem v 1        =
			A put 10 X mem v 1        = A<20
			find                      = C:mem`,
		"two puts in one tick: the lower rank's stays": `
			B put 10 Y mem v 1        =
			A put 10 X mem v 1        = B<11
			find                      = A:mem
			B put 10 Y mem v 2        = B<11
			A none v 2                = B<11
			find                      =`,
		"equal bytes of two puts are one block": `
			A put 10 X mem v 1        =
			B put 20 X mem v 1        =
			find                      = A:mem B:mem`,
		"provisional ids agree by stamp": `
			A put 10 X? mem v 1       =
			B put 10 X? mem v 1       =
			C put 10 X mem v 1        =
			find                      = A:mem B:mem C:mem
			D put 20 X? mem v 1       =
			find                      = D:mem
			D put 20 X mem v 2        =
			find                      = C:mem D:mem`,
		"provisional ids with other bytes contradict": `
			A put 10 X? mem v 1       =
			B put 20 Y? mem v 1       = A<20
			find                      = B:mem`,
		"a deleted name stays deleted": `
			A put 10 X mem v 1        =
			B put 12 X seg v 1        =
			bury 5                    = A<13 B<13
			find                      =
			A put 10 X mem v 2        = A<13 B<13
			C put 11 X mem v 1        = A<13 B<13 C<13
			find                      =
			A none v 3                = B<13 C<13
			D put 13 Y mem v 1        = B<13 C<13
			find                      = D:mem`,
		"what was put long after a deletion stays, however late that is": `
			A put 10 X mem v 1        =
			B put 300000000 Y mem v 1 = A<300000000
			bury 12                   = A<300000000
			find                      = B:mem
			C put 11 X mem v 1        = A<300000000 C<13
			bury 100000000            = A<300000001 B<300000001 C<300000001
			find                      =`,
		"a tombstone ends": `
			B put 12 X seg v 1        =
			bury 20                   = B<21
			wait 59                   =
			C put 15 X mem v 1        = B<21 C<21
			B none v 2                = C<21
			C none v 2                =
			wait 1                    =
			find                      =
			len                       = 0
			C put 15 X mem v 3        =
			find                      = C:mem`,
		"a tombstone is kept longer": `
			bury 20                   =
			wait 600 longer           =
			A put 15 X mem v 1        = A<21
			A none v 2                =
			wait 0                    =
			A put 15 X mem v 3        =`,
		"a tombstone does not end while it hides something": `
			B put 12 X seg v 1        =
			bury 20                   = B<21
			lost B 1                  =
			wait 60                   =
			C put 15 X mem v 1        = B<21 C<21
			C none v 2                = B<21
			wait 600                  =
			B put 12 X seg v 1 life 2 = B<21
			find                      =
			len                       = 1
			B none v 2 life 2         =
			len                       = 0`,
		"a tombstone hides what a dead rank may have in its arena": `
			A put 10 X mem v 1        =
			B put 20 Y mem v 1        = A<20
			C put 10 X mem v 1        = A<20 C<20
			C none v 2                = A<20
			lost A 1                  =
			lost C 1                  =
			B put 20 none v 2 until 5 =
			wait 60                   =
			len                       = 1
			A put 10 X mem v 1 life 2 = A<20
			find                      =
			A none v 2 life 2         =
			len                       = 0`,
		"what a tombstone hides is gone": `
			B put 12 X seg v 1        =
			bury 20                   = B<21
			wait 60                   =
			len                       = 1
			refute B none v 1         =
			len                       = 0`,
		"a put that has ended hides what was put before": `
			A put 10 X mem v 1        =
			B put 20 Y mem v 1 until 5 = A<20
			A none v 2                =
			wait 6                    =
			B put 20 none v 2 until 5 =
			find                      =
			A put 10 X mem v 3        = A<20
			C put 15 X mem v 1        = A<20 C<20
			find                      =
			A none v 4                = C<20
			C none v 2                =
			wait 59                   =
			len                       = 1
			wait 1                    =
			len                       = 0`,
		"a put that ends before it is heard of": `
			B put 20 none v 2 until 5 =
			A put 10 X mem v 1        = A<20
			find                      =
			B put 20 none v 2 until 5 = A<20
			C put 21 X mem v 1        = A<20
			find                      = C:mem`,
		"the end of an older put harms no newer one": `
			A put 30 X mem v 1        =
			B put 20 none v 2 until 5 =
			find                      = A:mem
			A none v 2                =
			C put 10 X mem v 1        = C<20
			wait 60                   =
			len                       = 1
			C none v 2                =
			len                       = 0`,
		"the end of an older put does not take the time of a tombstone": `
			bury 20                   =
			wait 30                   =
			B put 15 none v 2 until 5 =
			wait 30                   =
			len                       = 0`,
		"buried again: the later time counts": `
			bury 20                   =
			wait 30                   =
			bury 25                   =
			wait 31                   =
			A put 22 X mem v 1        = A<26
			A none v 2                =
			wait 28                   =
			len                       = 1
			wait 1                    =
			len                       = 0`,
		"bury what is unknown": `
			bury 20                   =
			len                       = 1
			A put 20 X mem v 1        = A<21
			find                      =`,
		"a dead rank leaves its segments": `
			A put 10 X mem seg v 1    =
			B put 10 X mem v 1 life 4 =
			lost A 1                  =
			find                      = B:mem A:seg
			lost B 3                  =
			find                      = B:mem A:seg
			lost B 4                  =
			find                      = A:seg
			A none v 2                =
			len                       = 0`,
		"refute": `
			A put 10 X mem seg v 7    =
			refute A none v 6         =
			find                      = A:mem+seg
			refute A none v 7 life 2  =
			find                      = A:mem+seg
			refute A seg v 7          =
			find                      = A:seg
			refute A mem seg v 7      =
			find                      = A:seg
			A put 10 X mem seg v 7    =
			find                      = A:seg
			refute A none v 7         =
			len                       = 0`,
		"names end": `
			A put 10 X mem v 1 until 5 =
			find                      = A:mem
			wait 5                    =
			find                      =`,
		"clear": `
			A put 10 X mem v 1        =
			clear other               =
			find                      = A:mem
			clear ns                  =
			len                       = 0
			A put 10 X mem v 1        =
			clear *                   =
			len                       = 0`,
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{t: t, d: New(), now: start}
			for _, line := range strings.Split(lines, "\n") {
				do, want, ok := strings.Cut(strings.TrimSpace(line), "=")
				if !ok {
					continue
				}
				if got := s.step(do); got != strings.TrimSpace(want) {
					t.Fatalf("%s: %q, want %q", strings.TrimSpace(do), got, strings.TrimSpace(want))
				}
			}
		})
	}
}

// TestOrderAndRepetition: as long as somebody has a name all the time, and each
// owner's last word is what it is, the order in which statements come, and how
// often, changes nothing.
func TestOrderAndRepetition(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		anchor := statement(t, strings.Fields("A put 10 X mem v 1"))
		var all []Statement
		for owner := 'B'; owner < 'G'; owner++ {
			for v := range 1 + rng.IntN(4) {
				where := []string{"mem", "seg", "mem seg", "none"}[rng.IntN(4)]
				bytes := []string{"X", "X?"}[rng.IntN(2)]
				all = append(all, statement(t, strings.Fields(fmt.Sprintf("%c put 10 %s v %d %s", owner, bytes, v+1, where))))
			}
		}
		play := func() map[string]bool {
			d := New()
			d.Apply(anchor, start)
			order := append(append([]Statement(nil), all...), all...)
			rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, s := range order {
				d.Apply(s, start)
			}
			set := map[string]bool{}
			d.Each(func(s Statement) bool {
				set[fmt.Sprint(s.Owner, s.Version, s.Memory != nil, s.Segment != nil)] = true
				return true
			})
			return set
		}
		if a, b := play(), play(); !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d: %v and %v", seed, a, b)
		}
	}
}

// TestNewestPutWinsInAnyOrder: puts of one name by several ranks, in any order
// and repeated, end with the newest one's owner alone.
func TestNewestPutWinsInAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		d := New()
		var all []Statement
		for i := range 6 {
			all = append(all, statement(t, strings.Fields(fmt.Sprintf("%c put %d Y%d mem v %d", 'A'+i, 10+i, i, i+1))))
		}
		all = append(all, all...)
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		told := map[fabric.Rank]bool{}
		for _, s := range all {
			for _, stale := range d.Apply(s, start) {
				told[stale.Owner] = true
			}
		}
		if got := found(d, start); got != "F:mem" || len(told) != 5 || told[5] {
			t.Fatalf("seed %d: found %q, told %v", seed, got, told)
		}
	}
}

func TestKeepForgetsWhatIsElsewhere(t *testing.T) {
	d := New()
	for i := range 1000 {
		s := statement(t, strings.Fields("A put 10 X mem v 1"))
		s.Name.Key = fmt.Sprint(i)
		d.Apply(s, start)
	}
	if n := d.Keep(func(_, name string) bool { return len(name) == 3 }); n != 100 || d.Len() != 900 {
		t.Errorf("%d dropped, %d left; want 100 and 900", n, d.Len())
	}
}

// What a name of a key of 42 bytes takes on the heap, that is in a segment alone, as most
// are.
func TestHeapOfNames(t *testing.T) {
	if race.On {
		t.Skip("one goroutine, and slow under the race detector")
	}
	const names = 200_000
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	id := func(i int) (id block.ID) {
		binary.LittleEndian.PutUint64(id[:], uint64(i+1)*0x9e3779b97f4a7c15)
		binary.LittleEndian.PutUint64(id[8:], uint64(i+1)*0xbf58476d1ce4e5b9)
		return id
	}
	digest := func(i int) string { return "model@1/k-" + id(i).String() }
	letters := func(i int) string { // that are no hexadecimal digits
		key := []byte(digest(i))
		for i := range key {
			key[i] = key[i]&0xf | 'p'
		}
		return string(key)
	}
	for name, c := range map[string]struct {
		name func(i int) block.Name
		most int64 // bytes
	}{
		"letters":  {func(i int) block.Name { return block.Name{Namespace: "ns", Key: letters(i)} }, 120},
		"digests":  {func(i int) block.Name { return block.Name{Namespace: "ns", Key: digest(i)} }, 105},
		"chains":   {func(i int) block.Name { return block.Name{Namespace: "ns", Key: digest(i), Parent: digest(i - 1)} }, 130},
		"contents": {func(int) block.Name { return block.Name{Namespace: Contents} }, 90},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			d := New()
			for i := range names {
				s := Statement{Name: c.name(i), Owner: fabric.Rank(i % 100), Incarnation: 7, Version: 1_800_000_000_000_000_000 + uint64(i)<<20}
				s.Name.Seq, s.Name.Depth = s.Version-uint64(time.Minute), uint32(i%100)
				s.Info = block.Info{ID: id(i), Size: 43_008, CRC: uint32(i) * 7919}
				if s.Name.Namespace == Contents {
					s.Name.Key, s.Name.Seq = ContentKey(s.Info.ID), ContentSeq
				}
				in, at := i/20_000, int64(i%20_000)<<16
				// As a put that is written, and then leaves memory, in as many statements.
				s.Memory = &Memory{Offset: at, Generation: uint64(i) << 32}
				d.Apply(s, start)
				s.Segment = &Segment{Path: fmt.Sprintf("inc7/agg_rank%03d_%06d.bin", s.Owner, in), Offset: at, Stored: s.Info.Size, StoredCRC: s.Info.CRC}
				s.Version++
				d.Apply(s, start)
				s.Memory = nil
				s.Version++
				d.Apply(s, start)
			}
			took := (heap() - before) / names
			t.Logf("%d bytes a name", took)
			if d.Len() != names || took > c.most {
				t.Errorf("%d names take %d bytes each, at most %d", d.Len(), took, c.most)
			}
		})
	}
}

// Look-ups of more names than caches hold.
func BenchmarkLookup(b *testing.B) {
	d := New()
	keys := make([]string, 200_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("%064d", i)
		d.Apply(full(keys[i]), start)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := d.Lookup("ns", keys[i*7919%len(keys)], start); !ok {
			b.Fatal("not found")
		}
		i++
	}
}

func BenchmarkApply(b *testing.B) {
	d := New()
	s := full("")
	b.ReportAllocs()
	for b.Loop() {
		s.Version++
		s.Name.Key = fmt.Sprintf("%064d", s.Version%100_000)
		d.Apply(s, start)
	}
}
