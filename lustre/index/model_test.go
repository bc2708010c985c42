package index

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// model is what an index should be, in plain maps. A segment that was deleted
// and comes back is another one: its life tells them apart.
type model struct {
	lives  map[Segment]int
	marks  map[Segment]uint64
	born   int
	blocks map[block.ID]modelBlock
	names  map[Key]modelName
	now    time.Time
}

type modelBlock struct {
	Block
	life int
}

type modelName struct {
	Name
	segment Segment
	life    int
	stray   bool // its block was not in its batch
}

func newModel() *model {
	return &model{
		lives: map[Segment]int{}, marks: map[Segment]uint64{}, blocks: map[block.ID]modelBlock{}, names: map[Key]modelName{},
		now: time.Unix(1000, 0),
	}
}

func (m *model) alive(s Segment, life int) bool { return life != 0 && m.lives[s] == life }

func (m *model) put(b Batch) { m.putAll([]Batch{b}) }

func (m *model) putAll(all []Batch) {
	type named struct {
		Name
		segment Segment
		stray   bool
	}
	var names []named
	for _, b := range all {
		if m.lives[b.Segment] == 0 {
			m.born++
			m.lives[b.Segment], m.marks[b.Segment] = m.born, 0
		}
		m.marks[b.Segment] = max(m.marks[b.Segment], b.Mark)
		for _, it := range b.Blocks {
			cur := m.blocks[it.Info.ID]
			if !b.Count && m.alive(cur.Place.Segment, cur.life) && cur.Place.Segment.supersedes(b.Segment, 0) {
				continue
			}
			it.Place.Segment = b.Segment
			m.blocks[it.Info.ID] = modelBlock{it, m.lives[b.Segment]}
		}
		for _, n := range b.Names {
			with := func(it Block) bool { return it.Info.ID == n.ID }
			names = append(names, named{n, b.Segment, !slices.ContainsFunc(b.Blocks, with)})
		}
	}
	slices.SortStableFunc(names, func(a, b named) int { return int(a.Depth) - int(b.Depth) })
	for _, n := range names {
		cur := m.names[n.Key]
		if m.alive(cur.segment, cur.life) {
			n.Hides = cur.Hides || cur.segment.Rank != n.segment.Rank || cur.segment.Incarnation != n.segment.Incarnation
			ends := func(n Name) int64 {
				switch {
				case n.Dropped:
					return 0
				case n.Expires.IsZero():
					return math.MaxInt64
				}
				return n.Expires.Unix() + 1
			}
			n.Outlived = cur.Outlived || cur.Seq > n.Seq && ends(n.Name) > ends(cur.Name) || cur.Seq <= n.Seq && ends(cur.Name) > ends(n.Name)
			if cur.Seq > n.Seq || cur.Seq == n.Seq && (cur.Dropped && !n.Dropped || cur.Dropped == n.Dropped && cur.segment.supersedes(n.segment, 0)) {
				cur.Hides, cur.Outlived = n.Hides, n.Outlived
				m.names[n.Key] = cur
				continue
			}
		}
		m.names[n.Key] = modelName{n.Name, n.segment, m.lives[n.segment], n.stray}
	}
}

func (m *model) delete(s Segment) { delete(m.lives, s); delete(m.marks, s) }

func (m *model) get(id block.ID) (Block, bool) {
	b := m.blocks[id]
	return b.Block, m.alive(b.Place.Segment, b.life)
}

func (m *model) find(k Key) (Block, Name, bool) {
	n := m.names[k]
	if !m.alive(n.segment, n.life) || n.Dropped || !n.Expires.IsZero() && !n.Expires.After(m.now) {
		return Block{}, Name{}, false
	}
	b, ok := m.get(n.ID)
	n.Name.Parent = Key{}
	return b, n.Name, ok
}

// lost reports whether a name counts, and leads nowhere.
func (m *model) lost(k Key) bool {
	_, n, ok := m.find(k)
	return n.Key != (Key{}) && !ok
}

func (m *model) probe(chain []Key) int {
	for i, k := range chain {
		if _, _, ok := m.find(k); !ok {
			return i
		}
	}
	return len(chain)
}

// world drives an index and its model with the same random calls.
type world struct {
	t   *testing.T
	r   *rand.Rand
	o   Options
	x   *Index
	m   *model
	seq uint64
}

const (
	worldNames    = 60
	worldBlocks   = 40
	worldSegments = 6
)

// Names form a tree: the parent of n is (n-1)/2, so that chains branch often.
func (w *world) parent(n uint64) uint64 { return (n - 1) / 2 }

func (w *world) path(n uint64) []uint64 {
	path := []uint64{n}
	for ; n > 0; n = w.parent(n) {
		path = append(path, w.parent(n))
	}
	slices.Reverse(path)
	return path
}

func (w *world) segment() Segment {
	n := w.r.Uint64N(worldSegments)
	return Segment{Rank: uint32(n % 2), Incarnation: 1 + n/3, File: n}
}

// batch makes a random batch: mostly parts of chains as a store would put them,
// sometimes names whose depth or parent is a lie.
func (w *world) batch() Batch {
	w.seq++
	b := Batch{Segment: w.segment(), Mark: w.seq, Count: w.r.IntN(6) == 0}
	for range w.r.IntN(4) {
		n := w.r.Uint64N(worldBlocks)
		it := blockIn(b.Segment, n)
		it.Place.Offset += int64(w.seq) * 8
		if w.r.IntN(4) == 0 {
			it.Place.Codec, it.Place.Stored, it.Place.StoredCRC = 1, it.Info.Size+3, 77
		}
		b.Blocks = append(b.Blocks, it)
	}
	for _, n := range w.path(w.r.Uint64N(worldNames)) {
		if w.r.IntN(5) == 0 {
			continue
		}
		name := w.name(n)
		if i := len(b.Names); i < len(b.Blocks) && !name.Dropped && w.r.IntN(2) == 0 {
			name.ID = b.Blocks[i].Info.ID
		}
		b.Names = append(b.Names, name)
	}
	return b
}

func (w *world) name(n uint64) Name {
	name := Name{
		Key: key(n), ID: id(w.r.Uint64N(worldBlocks)), Depth: uint32(len(w.path(n)) - 1),
		Seq: w.seq*10 - w.r.Uint64N(25)*w.r.Uint64N(2), Prefix: w.r.IntN(2) == 0, Bound: w.r.IntN(3) == 0,
	}
	name.Seq = max(name.Seq, 1)
	if n > 0 {
		name.Parent = key(w.parent(n))
	}
	switch w.r.IntN(12) {
	case 0:
		name.Depth = w.r.Uint32N(8)
	case 1:
		name.Parent = key(w.r.Uint64N(worldNames))
	case 2:
		name.Expires = time.Unix(900+w.r.Int64N(200), w.r.Int64N(2)).UTC()
	case 3:
		name = Name{Key: name.Key, Seq: name.Seq, Dropped: true}
	}
	return name
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) step() string {
	ctx := context.Background()
	switch n := w.r.IntN(100); {
	case n < 55:
		b := w.batch()
		w.must(w.x.PutBatch(ctx, b))
		w.m.put(b)
		return describe(b)
	case n < 65:
		s := w.segment()
		w.must(w.x.DeleteSegment(ctx, s))
		w.m.delete(s)
		return fmt.Sprintf("delete %+v", s)
	case n < 75:
		victim := w.m.blocks[id(w.r.Uint64N(worldBlocks))].Block
		there := victim
		switch w.r.IntN(4) {
		case 0:
			there.Place.Offset++
		case 1:
			there.Place.Segment = w.segment()
		}
		w.must(w.x.Forget(ctx, there))
		if there == victim {
			delete(w.m.blocks, victim.Info.ID)
		}
		return fmt.Sprintf("forget %v at %+v", victim.Info.ID, there.Place)
	case n < 80:
		w.must(w.x.clean())
		return "clean"
	case n < 85:
		w.must(w.x.Sync(ctx))
		return "sync"
	case n < 88:
		w.must(w.x.Retune(ctx, 2+w.r.IntN(10), 1+w.r.IntN(8)))
		return "retune"
	case n < 91:
		w.must(w.x.Close())
		var err error
		w.x, err = Open(w.o)
		w.must(err)
		if err := w.x.Emptied(); err != nil {
			w.t.Fatal("emptied: ", err)
		}
		return "reopen"
	case n < 92:
		now := w.m.now
		w.m = newModel()
		w.m.now = now
		w.must(w.x.Rebuild(ctx, each(w.load()...)))
		return "rebuild"
	case n < 93:
		w.must(w.x.Load(ctx, each(w.load()...)))
		return "load"
	case n < 96:
		w.m.now = w.m.now.Add(10 * time.Second)
		return "time"
	}
	w.must(w.x.engine.Load().db.Compact(ctx, []byte{0}, []byte{255}, true))
	return "compact"
}

// describe is a batch in numbers, as far as a failure needs it.
func describe(b Batch) string {
	number := map[Key]int{}
	for n := range uint64(worldNames) {
		number[key(n)] = int(n)
	}
	text := fmt.Sprintf("put %d:", b.Segment.File)
	for _, it := range b.Blocks {
		text += fmt.Sprintf(" b%d", it.Info.CRC)
	}
	for _, n := range b.Names {
		text += fmt.Sprintf(" n%d<%d@%d=%.2x#%d", number[n.Key], number[n.Parent], n.Depth, n.ID[:1], n.Seq)
	}
	return text
}

// load makes many batches and has the model take them in as Load does: of one
// step all blocks come first, and names go by depth over all of it.
func (w *world) load() (all []Batch) {
	var step []Batch
	entries := 0
	for range w.r.IntN(30) {
		b := w.batch()
		all, step = append(all, b), append(step, b)
		if entries += len(b.Blocks) + len(b.Names); entries >= w.o.loadBatch {
			w.m.putAll(step)
			step, entries = nil, 0
		}
	}
	w.m.putAll(step)
	return all
}

func each(all ...Batch) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for _, b := range all {
			if !yield(b, nil) {
				return
			}
		}
	}
}

// compare asks the index and the model everything.
func (w *world) compare() {
	w.t.Helper()
	for n := range uint64(worldBlocks) {
		got, err := w.x.Get(id(n))
		want, ok := w.m.get(id(n))
		if ok != (err == nil) || ok && got != want || err != nil && !errors.Is(err, ErrNotFound) {
			w.t.Fatalf("get %d: %+v, %v; want %+v, %v", n, got, err, want, ok)
		}
	}
	for n := range uint64(worldNames) {
		got, name, err := w.x.Find(key(n))
		want, wantName, ok := w.m.find(key(n))
		if ok != (err == nil) || ok && (got != want || name != wantName) || err != nil && !errors.Is(err, ErrNotFound) {
			w.t.Fatalf("find %d: %+v, %+v, %v; want %+v, %+v, %v", n, got, name, err, want, wantName, ok)
		}
	}
	for range 10 {
		w.compareChain(keys(w.path(w.r.Uint64N(worldNames))...))
	}
	scattered := make([]Key, 20)
	for i := range scattered {
		scattered[i] = key(w.r.Uint64N(worldNames + 5))
	}
	w.compareChain(scattered)
	w.compareStrays()
	w.compareAll()
}

func (w *world) compareChain(chain []Key) {
	w.t.Helper()
	if n, err := leading(w.x, chain); err != nil || n != w.m.probe(chain) {
		w.t.Fatalf("probe of %d: %d, %v; want %d", len(chain), n, err, w.m.probe(chain))
	}
	dst, found := make([]Entry, len(chain)), 0
	n, err := w.x.FindBatch(chain, dst)
	for i, k := range chain {
		want, _, ok := w.m.find(k)
		if !ok {
			want = Block{}
		} else {
			found++
		}
		if dst[i].Block != want {
			w.t.Fatalf("find_batch of %d, %d: %+v; want %+v", len(chain), i, dst[i], want)
		}
	}
	if err != nil || n != found {
		w.t.Fatalf("find_batch of %d: %d, %v; want %d", len(chain), n, err, found)
	}
	w.must(w.x.Probe(chain, func(i int, p *Presence) bool {
		b, name, ok := w.m.find(chain[i])
		if lost := w.m.lost(chain[i]); lost != (p != nil && p.Lost) {
			w.t.Fatalf("probe of %d, %d: %+v; lost: %v", len(chain), i, p, lost)
		} else if lost {
			return true
		}
		if ok != (p != nil) || ok && (p.Segment != w.m.names[chain[i]].segment || p.Size != b.Info.Size || p.Seq != name.Seq || p.Bound != name.Bound || string(p.Note) != name.Note) {
			w.t.Fatalf("probe of %d, %d: %+v; want %+v of %+v", len(chain), i, p, name, b)
		}
		return true
	}))
}

// compareStrays: all that must be strays are, and no other name of a block is there
// that does not count.
func (w *world) compareStrays() {
	w.t.Helper()
	var ids []block.ID
	for n := range uint64(worldBlocks) {
		ids = append(ids, id(n))
	}
	all, err := w.x.Strays(ids)
	w.must(err)
	found := map[Key]bool{}
	for i, entries := range all {
		for _, e := range entries {
			_, want, _ := w.m.find(e.Name.Key)
			b, ok := w.m.get(ids[i])
			if !ok {
				b = Block{} // the name counts, and leads nowhere
			}
			if found[e.Name.Key] || e.Name.ID != ids[i] || e.Name != want || e.Segment != w.m.names[want.Key].segment || e.Block != b {
				w.t.Fatalf("a stray of %d: %+v; want %+v", i, e, want)
			}
			found[e.Name.Key] = true
		}
	}
	for k, n := range w.m.names {
		if _, counts, _ := w.m.find(k); n.stray && counts.Key == k && !found[k] {
			w.t.Fatalf("no stray: %+v", n)
		}
	}
}

func (w *world) compareAll() {
	w.t.Helper()
	seen := map[block.ID]bool{}
	w.must(w.x.iterate(func(b Block) error {
		want, ok := w.m.get(b.Info.ID)
		if !ok || b != want || seen[b.Info.ID] {
			return fmt.Errorf("iterate: %+v; want %+v, %v", b, want, ok)
		}
		seen[b.Info.ID] = true
		return nil
	}))
	for blockID := range w.m.blocks {
		if _, ok := w.m.get(blockID); ok && !seen[blockID] {
			w.t.Fatalf("iterate left out %v", blockID)
		}
	}
	segments, err := w.x.Segments()
	w.must(err)
	count := map[Segment]uint64{}
	for _, n := range w.m.names {
		if w.m.alive(n.segment, n.life) && !n.Dropped {
			count[n.segment]++
		}
	}
	for _, s := range segments {
		if s.Names-s.Stale != count[s.Segment] || s.Blocks+s.Names > s.Entries {
			w.t.Fatalf("segment %+v; want %d names that count", s, count[s.Segment])
		}
		if w.m.lives[s.Segment] == 0 || s.Mark != w.m.marks[s.Segment] {
			w.t.Fatalf("segment %+v; want mark %d", s, w.m.marks[s.Segment])
		}
	}
	if len(segments) != len(w.m.lives) {
		w.t.Fatalf("%d segments, want %d", len(segments), len(w.m.lives))
	}
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), m: newModel(), o: memOptions()}
	w.o.MemTableBytes = 64 << 10
	w.o.loadBatch = 1 << w.r.IntN(8)
	w.o.Now = func() time.Time { return w.m.now }
	w.x = open(t, w.o)
	t.Cleanup(func() { w.x.Close() })
	return w
}

func TestAgainstModel(t *testing.T) {
	worlds, steps := 8, 150
	if testing.Short() {
		worlds, steps = 3, 60
	}
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, uint64(seed))
			var log []string
			defer func() {
				if t.Failed() {
					for _, line := range log[max(0, len(log)-8):] {
						t.Log(line)
					}
				}
			}()
			for range steps {
				log = append(log, w.step())
				w.compare()
			}
		})
	}
}
