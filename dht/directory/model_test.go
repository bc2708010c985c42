package directory

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// model is a directory that keeps its entries as they are, unpacked.
type model struct {
	entries map[key]*entry
	tombs   []tombstone
}

func (m *model) apply(s Statement, now time.Time) []Stale {
	k := key{s.Name.Namespace, s.Name.Key}
	e := m.entries[k]
	if e == nil {
		if !s.Has() && !s.ended() {
			return nil
		}
		e = &entry{}
		m.entries[k] = e
	}
	e.replaced(&s)
	if s.ended() && s.Name.Seq > e.buried {
		m.deleteBelow(k, s.Name.Seq, now)
	}
	e.set(s)
	stale := e.judge(k)
	m.prune()
	return stale
}

func (m *model) prune() {
	maps.DeleteFunc(m.entries, func(_ key, e *entry) bool { return e.empty() })
}

func (m *model) lookup(k key, now time.Time) []Statement {
	e := m.entries[k]
	if e == nil {
		return nil
	}
	best := e.newest()
	if best == nil || best.expired(now) {
		return nil
	}
	return e.copies(best, k.namespace == Contents)
}

func (m *model) delete(k key, stamp uint64, now time.Time) []Stale {
	e := m.entries[k]
	if e == nil {
		e = &entry{}
		m.entries[k] = e
	}
	for i := range e.records {
		stamp = max(stamp, e.records[i].Name.Seq)
	}
	m.deleteBelow(k, max(e.buried, stamp+1), now)
	return e.judge(k)
}

func (m *model) deleteBelow(k key, below uint64, now time.Time) {
	e := m.entries[k]
	e.deleteBelow(below, now)
	m.tombs = append(m.tombs, tombstone{k, e.until})
}

func (m *model) sweep(now time.Time) {
	for len(m.tombs) > 0 && m.tombs[0].until <= now.UnixNano() {
		t := m.tombs[0]
		m.tombs = m.tombs[1:]
		if e := m.entries[t.key]; e != nil && e.buried > 0 && e.until <= t.until {
			e.over()
		}
	}
	m.prune()
}

func (m *model) lost(incarnations map[fabric.Rank]uint64) {
	for _, e := range m.entries {
		for i := range e.records {
			if r := &e.records[i]; r.Incarnation <= incarnations[r.Owner] {
				r.dead, r.Memory = true, nil
			}
		}
	}
	m.prune()
}

func (m *model) invalidate(s Statement) {
	e := m.entries[key{s.Name.Namespace, s.Name.Key}]
	if e == nil {
		return
	}
	for i := range e.records {
		if r := &e.records[i]; r.Owner == s.Owner && r.Incarnation == s.Incarnation && r.Version == s.Version {
			r.invalidate(&s)
		}
	}
	m.prune()
}

func (m *model) keep(keep func(key) bool) {
	maps.DeleteFunc(m.entries, func(k key, _ *entry) bool { return !keep(k) })
}

// random makes statements whose fields have what fields may have.
type random struct{ *rand.Rand }

func (r random) key() key {
	n := r.IntN(40)
	if r.IntN(4) == 0 {
		return key{Contents, ContentKey(r.id(n))}
	}
	text := []string{"k%d", "model@1/%032x", "%08x-%08x", "%x", "a name %d that is no digest", strings.Repeat("k", 300) + "%d", "00000000%d"}[n%7]
	return key{[]string{"", "ns", "other"}[r.IntN(3)], fmt.Sprintf(text, n, n)[:min(len(text)+30, len(fmt.Sprintf(text, n, n)))]}
}

func (r random) id(n int) block.ID {
	switch n % 8 {
	case 0:
		return block.Provisional(uint64(n + 1))
	case 1:
		return block.Sum(block.Bits256, []byte{byte(n)})
	}
	return block.Sum(block.Bits128, []byte{byte(n)})
}

func (r random) statement(k key) Statement {
	is := func() bool { return r.IntN(3) == 0 }
	s := Statement{Owner: fabric.Rank(r.IntN(5) * 100), Incarnation: 1 + uint64(r.IntN(3)), Version: uint64(1 + r.IntN(20))}
	s.Name = block.Name{Namespace: k.namespace, Key: k.name, Seq: uint64(10 + r.IntN(4)), Depth: uint32(r.IntN(300))}
	s.Name.Prefix, s.Name.Bound, s.Name.Inferred = is(), is(), is()
	if is() {
		s.Version += 1_700_000_000_000_000_000
	}
	if is() {
		s.Name.Parent = []string{k.name + "x", k.name[:len(k.name)/2], "parent", "parent-0123456789abcdef"}[r.IntN(4)]
	}
	if r.IntN(8) == 0 {
		s.Name.Expires = start.Add(time.Duration(r.IntN(100)) * time.Second)
	}
	what := r.IntN(2)
	if s.Info = (block.Info{ID: r.id(2 + what), Size: int64(what) << 20, CRC: uint32(what)}); is() {
		s.Info.ID = r.id(8 * what)
	}
	if k.namespace == Contents {
		s.Info.ID, _ = ContentID(k.name)
		s.Name.Seq = ContentSeq
	}
	if is() {
		s.Memory = &Memory{uint32(r.IntN(2)), int64(r.IntN(1 << 40)), r.Uint64()}
	}
	if r.IntN(2) == 0 {
		s.Segment = &Segment{Path: fmt.Sprintf("inc%d/agg_rank%03d_%06d.bin", s.Incarnation, s.Owner, r.IntN(20)), Offset: int64(r.IntN(1 << 36)), Stored: s.Info.Size, StoredCRC: s.Info.CRC}
		if is() {
			s.Segment.Stored, s.Segment.StoredCRC, s.Segment.Codec = 77, r.Uint32(), 2
		}
	}
	if !s.Has() && is() {
		s.Info = block.Info{}
	}
	return s
}

// TestPackedAnswersAlike: whatever happens to a directory, it answers as one whose entries
// are not packed, and has what its entries use, no more.
func TestPackedAnswersAlike(t *testing.T) {
	for seed := range uint64(10) {
		r := random{rand.New(rand.NewPCG(seed, 3))}
		d, m, now := New(), &model{entries: map[key]*entry{}}, start
		for step := range 3000 {
			k, what := r.key(), ""
			var got, want any
			switch op := r.IntN(1000); {
			case op < 600:
				s := r.statement(k)
				what, got, want = fmt.Sprintf("apply %+v", s), d.Apply(s, now), m.apply(s, now)
			case op < 800:
				found, _ := d.Lookup(k.namespace, k.name, now)
				what, got, want = fmt.Sprintf("lookup %q", k), found.Copies, m.lookup(k, now)
			case op < 850:
				stamp := uint64(10 + r.IntN(4))
				what, got, want = fmt.Sprintf("delete %q", k), d.Delete(k.namespace, k.name, stamp, now), m.delete(k, stamp, now)
			case op < 950:
				var s Statement
				if copies := m.lookup(k, now); len(copies) > 0 {
					if s = copies[r.IntN(len(copies))]; r.IntN(2) == 0 {
						s.Memory = nil
					} else {
						s.Segment = nil
					}
				}
				what = fmt.Sprintf("invalidate %+v", s)
				d.Invalidate(s)
				m.invalidate(s)
			case op < 970:
				now = now.Add(time.Duration(r.IntN(40)) * time.Second)
				what = "sweep"
				d.Sweep(now, 0)
				m.sweep(now)
			case op < 990:
				dead := map[fabric.Rank]uint64{fabric.Rank(r.IntN(5) * 100): 1 + uint64(r.IntN(3))}
				what = fmt.Sprint("lost ", dead)
				d.Lost(dead)
				m.lost(dead)
			case op < 998:
				most := r.IntN(400)
				what = "keep"
				d.Keep(func(_, name string) bool { return len(name) < most })
				m.keep(func(k key) bool { return len(k.name) < most })
			default:
				what = "clear"
				d.Clear("ns", seed%2 == 0, math.MaxUint64)
				m.keep(func(k key) bool { return k.namespace == Contents || seed%2 == 1 && k.namespace != "ns" })
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: %s: %+v\nwant %+v", seed, step, what, got, want)
			}
			if step%100 == 0 || step > 2990 {
				sameAsModel(t, d, m)
			}
			if t.Failed() {
				t.Fatalf("seed %d, step %d: %s", seed, step, what)
			}
		}
		d.Keep(func(string, string) bool { return false })
		wantNothingKept(t, d)
	}
}

func sameAsModel(t *testing.T, d *Directory, m *model) {
	t.Helper()
	list := func(all []Statement) []string {
		var text []string
		for _, s := range all {
			memory, segment := s.Memory, s.Segment
			s.Memory, s.Segment = nil, nil
			text = append(text, fmt.Sprintf("%+v %+v %+v", s, memory, segment))
		}
		slices.Sort(text)
		return text
	}
	var got, want []Statement
	d.Each(func(s Statement) bool { got = append(got, s); return true })
	for _, e := range m.entries {
		for i := range e.records {
			if r := &e.records[i]; r.live() {
				want = append(want, r.Statement)
			}
		}
	}
	if a, b := list(got), list(want); !slices.Equal(a, b) {
		t.Errorf("each: %v\nwant %v", a, b)
	}
	if d.Len() != len(m.entries) {
		t.Errorf("%d entries, want %d", d.Len(), len(m.entries))
	}
	uses := make([]uint32, len(d.words.uses))
	for i := range d.shards {
		sh := &d.shards[i]
		taken, living := 0, 0
		for j, s := range sh.entries.slots {
			if s.ref == 0 {
				continue
			}
			taken++
			living += len(sh.entries.item(s.ref))
			e := sh.at(j)
			for _, n := range e.used {
				uses[n]++
			}
			if again := sh.find(e.key, e.hash); again.slot != j {
				t.Errorf("%q is in slot %d, found in %d", e.key, j, again.slot)
			}
		}
		size, dead, bytes := 0, 0, 0
		for _, c := range sh.entries.list {
			size, dead, bytes = size+cap(c.bytes), dead+c.dead, bytes+len(c.bytes)
		}
		c := &sh.entries.chunks
		if taken != sh.entries.taken || size != c.size || dead != c.dead || bytes-dead < living || bytes-dead > living+3*taken {
			t.Errorf("%d entries of %d, %d bytes of %d, %d dead of %d, %d living of %d", taken, sh.entries.taken, size, c.size, dead, c.dead, living, bytes)
		}
		if size > 2*living+4<<10 {
			t.Errorf("%d bytes for %d that are used", size, living)
		}
	}
	if !slices.Equal(uses, d.words.uses) {
		t.Errorf("words are used %v times, want %v", d.words.uses, uses)
	}
}

func wantNothingKept(t *testing.T, d *Directory) {
	t.Helper()
	for i := range d.shards {
		if e := &d.shards[i].entries; e.size != 0 || e.slots != nil {
			t.Errorf("an empty shard has %d bytes and %d slots", e.size, len(e.slots))
		}
	}
	if len(d.words.number) != 0 || len(d.words.unused) != len(d.words.uses) {
		t.Errorf("words %v are left", d.words.number)
	}
}

// An entry may be larger than a chunk: each rank of a large job may have a copy of a name.
func TestANameOfManyOwners(t *testing.T) {
	d, m, r := New(), &model{entries: map[key]*entry{}}, random{rand.New(rand.NewPCG(1, 4))}
	k := key{"ns", "k"}
	for owner := range fabric.Rank(600) {
		s := statement(t, strings.Fields("A put 10 X mem seg v 1"))
		s.Owner, s.Name.Parent = owner, fmt.Sprintf("p%s%d", strings.Repeat("arent", 30), r.IntN(10))
		d.Apply(s, start)
		m.apply(s, start)
	}
	sameAsModel(t, d, m)
	sh, e := d.find(k)
	if n := len(sh.entries.item(sh.entries.slots[e.slot].ref)); n <= maxChunk {
		t.Errorf("the entry has %d bytes, no more than a chunk", n)
	}
	sh.mu.Unlock()
	for owner := range fabric.Rank(600) {
		s := Statement{Name: block.Name{Namespace: k.namespace, Key: k.name}, Owner: owner, Incarnation: 1, Version: 2}
		d.Apply(s, start)
		m.apply(s, start)
	}
	sameAsModel(t, d, m)
	wantNothingKept(t, d)
}

// Those who change entries at once use and release the same words.
func TestWordsOfManyAtOnce(t *testing.T) {
	d := New()
	var wait sync.WaitGroup
	for owner := range fabric.Rank(4) {
		wait.Go(func() {
			s := Statement{Owner: owner, Incarnation: 1, Info: block.Info{ID: block.Sum(block.Bits128), Size: 1}}
			s.Name.Namespace = "ns"
			for s.Version < 2000 {
				s.Version++
				s.Name.Key = fmt.Sprintf("%d of %d", s.Version%30, owner)
				s.Segment = &Segment{Path: fmt.Sprint("path ", s.Version%70), Stored: 1}
				d.Apply(s, start)
				if f, ok := d.Lookup("ns", s.Name.Key, start); !ok || !reflect.DeepEqual(f.Copies, []Statement{s}) {
					t.Errorf("found %+v, want %+v", f.Copies, s)
					return
				}
				if s.Version++; s.Version%3 == 0 {
					s.Segment = nil
					d.Apply(s, start)
				}
			}
		})
	}
	wait.Wait()
	d.Keep(func(string, string) bool { return false })
	wantNothingKept(t, d)
}
