package catalogue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// unavailable makes err, if there is one, match tiers.ErrUnavailable.
func unavailable(err error) error {
	if err != nil {
		return fmt.Errorf("catalogue: %w: %w", tiers.ErrUnavailable, err)
	}
	return nil
}

// Options configure a Catalogue. Store and Index.Dir are required.
type Options struct {
	// Store reads the segments. It should have been opened with OwnOnly and
	// Catalogued; the catalogue does not close it.
	Store *segment.Store

	// Index is where the catalogue lives and how it is tuned. Its Campaign
	// should name the directory of segments and the rank.
	Index index.Options

	// Readers is how many segments are read at once. Default 8.
	Readers int
}

// Catalogue is the tiers.Catalogue of a files tier. All methods are safe for
// concurrent use.
type Catalogue struct {
	store   *segment.Store
	index   *index.Index
	readers int

	turn   chan struct{} // holds one while somebody changes what is known
	shown  atomic.Pointer[round]
	spaces sync.Map // index.Namespace → index.Space: known to the index
	read   atomic.Uint64

	left      map[tiers.Part]bool // left out of the last round; with the turn
	partsLeft atomic.Uint64       // rounds that had not all parts of the one before
	partial   atomic.Bool         // no round has ended, or the last one could not read all parts, this rank's among them

	own  own
	lost lost
	now  func() time.Time

	asked  atomic.Int64 // when the last Find was, Unix nanoseconds
	tuning atomic.Pointer[Tuning]
}

// round is what the last AdoptParts made findable.
type round struct {
	parts map[tiers.Part]bool // nil: none has ended since the index was opened or begun anew
	fresh map[index.Segment]bool
}

// Open opens the catalogue in Index.Dir, or makes an empty one. Errors:
// tiers.ErrUnavailable, with index.ErrSharedFS when the directory is not node-local.
func Open(o Options) (*Catalogue, error) {
	x, err := index.Open(o.Index)
	if err != nil {
		return nil, unavailable(err)
	}
	c := &Catalogue{store: o.Store, index: x, readers: cmp.Or(max(o.Readers, 0), 8), turn: make(chan struct{}, 1), left: map[tiers.Part]bool{}}
	c.shown.Store(&round{})
	c.partial.Store(true)
	spaces, _ := x.Spaces() // of one that broke at once nothing is known, and it is begun anew
	for _, s := range spaces {
		c.spaces.Store(index.NamespaceOf(s.Text), s)
		if s.Seq > 0 {
			c.store.Observe(s.Text, s.Seq, s.Layout)
		}
	}
	if c.now = o.Index.Now; c.now == nil {
		c.now = time.Now
	}
	c.openOwn()
	return c, nil
}

func (c *Catalogue) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Catalogue) unlock() { <-c.turn }

// Err implements tiers.Catalogue.
func (c *Catalogue) Err() error { return unavailable(c.index.Err()) }

// Emptied returns why the catalogue began empty; nil when it kept what was there.
func (c *Catalogue) Emptied() error { return c.index.Emptied() }

// Find implements tiers.Catalogue.
func (c *Catalogue) Find(ns string, keys []string) []tiers.Found {
	c.asked.Store(time.Now().UnixNano())
	return c.find(ns, keys, c.index.FindBatch)
}

// Probe implements tiers.Catalogue.
func (c *Catalogue) Probe(ns string, keys []string) []tiers.Presence {
	c.asked.Store(time.Now().UnixNano())
	present := make([]tiers.Presence, len(keys))
	shows := c.shows()
	if shows == nil {
		return present
	}
	var last index.Segment // names of a chain mostly lie together
	shown := false
	err := c.index.Probe(hashesOf(ns, keys), func(i int, p *index.Presence) bool {
		if p == nil {
			return true
		}
		if p.Segment != last {
			last, shown = p.Segment, shows(partOf(p.Segment))
		}
		if shown && p.Lost {
			c.meetLost(p.Segment)
		} else if shown && isNoteOf(p.Note, keys[i]) {
			present[i] = tiers.Presence{Found: true, Bound: p.Bound, Size: p.Size, Seq: p.Seq}
		}
		return true
	})
	if err != nil {
		clear(present) // misses; Err has the reason
	}
	return present
}

// hashesOf is what the index has of keys.
func hashesOf(ns string, keys []string) []index.Key {
	space, hashes := index.NamespaceOf(ns), make([]index.Key, len(keys))
	for i, k := range keys {
		hashes[i] = space.Key(k)
	}
	return hashes
}

// Peek implements tiers.Catalogue: the index is not tuned for it, and it disturbs no
// quiet moment.
func (c *Catalogue) Peek(ns string, keys []string) []tiers.Found {
	return c.find(ns, keys, c.index.PeekBatch)
}

func (c *Catalogue) find(ns string, keys []string, look func([]index.Key, []index.Entry) (int, error)) []tiers.Found {
	found := make([]tiers.Found, len(keys))
	shows := c.shows()
	if shows == nil {
		return found
	}
	entries := make([]index.Entry, len(keys))
	if _, err := look(hashesOf(ns, keys), entries); err != nil {
		return found // a miss; Err has the reason
	}
	var last index.Segment // blocks of a chain mostly lie together, and to make a path costs more than to find a name
	var path string
	for i, e := range entries {
		if e.Name.Key == (index.Key{}) || e.Name.Dropped || !shows(partOf(e.Segment)) {
			continue
		}
		if e.Block.Info.ID.IsZero() {
			if e.Name.Expires.IsZero() || e.Name.Expires.After(c.now()) {
				c.meetLost(e.Segment)
			}
			continue
		}
		if s := e.Block.Place.Segment; path == "" || s != last {
			last, path = s, segment.Path(partOf(s), s.File)
		}
		if f, ok := foundAt(e, path); ok && f.Name.Key == keys[i] {
			f.Name.Namespace = ns
			found[i] = f
		}
	}
	return found
}

// shows returns which parts names are found of; nil: none.
func (c *Catalogue) shows() func(tiers.Part) bool {
	others, mine := c.shown.Load().parts, *c.own.parts.Load()
	if len(others)+len(mine) == 0 {
		return nil
	}
	return func(p tiers.Part) bool { return others[p] || mine[p] }
}

// foundOf is an entry in the caller's words but for the namespace.
func foundOf(e index.Entry) (tiers.Found, bool) {
	s := e.Block.Place.Segment
	return foundAt(e, segment.Path(partOf(s), s.File))
}

// foundAt is foundOf for a block in the file of that path.
func foundAt(e index.Entry, path string) (tiers.Found, bool) {
	_, key, parent, ok := cutNote(e.Name.Note)
	return tiers.Found{
		Info: e.Block.Info,
		Name: block.Name{
			Key: key, Parent: parent, Depth: e.Name.Depth, Seq: e.Name.Seq, Expires: e.Name.Expires,
			Prefix: e.Name.Prefix, Bound: e.Name.Bound, Inferred: e.Name.Inferred,
		},
		Segment: placeIn(e.Block.Place, path),
	}, ok
}

func placeOf(p index.Place) tiers.Segment {
	return placeIn(p, segment.Path(partOf(p.Segment), p.Segment.File))
}

func placeIn(p index.Place, path string) tiers.Segment {
	return tiers.Segment{
		Path:   path,
		Offset: p.Offset, Stored: p.Stored, StoredCRC: p.StoredCRC, Codec: p.Codec,
	}
}

// foundIn is foundOf with the namespace.
func (c *Catalogue) foundIn(e index.Entry) (tiers.Found, bool, error) {
	f, ok := foundOf(e)
	ns, _, _, _ := cutNote(e.Name.Note)
	space, err := c.space(ns)
	f.Name.Namespace = space.Text
	return f, ok, err
}

func partOf(s index.Segment) tiers.Part {
	return tiers.Part{Rank: s.Rank, Incarnation: s.Incarnation}
}

// errEnough ends a walk through the index.
var errEnough = errors.New("enough")

// Names implements tiers.Catalogue. What changes meanwhile may be seen or not.
func (c *Catalogue) Names(fresh bool, fn func(tiers.Found) bool) error {
	shows, of := c.shows(), c.shown.Load().fresh
	if shows == nil || fresh && len(of) == 0 {
		return nil
	}
	err := c.index.Names(func(e index.Entry) error {
		if !shows(partOf(e.Segment)) || fresh && !of[e.Segment] {
			return nil
		}
		f, ok, err := c.foundIn(e)
		if err != nil || !ok {
			return err
		}
		if !fn(f) {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return unavailable(err)
}

// space is what the index has of a namespace.
func (c *Catalogue) space(ns index.Namespace) (index.Space, error) {
	if s, ok := c.spaces.Load(ns); ok {
		return s.(index.Space), nil
	}
	s, err := c.index.Space(ns)
	if err != nil {
		return s, fmt.Errorf("the text of a namespace: %w", err)
	}
	c.spaces.Store(ns, s)
	return s, nil
}

// Namespaces implements tiers.Catalogue.
func (c *Catalogue) Namespaces() (all []string) {
	c.spaces.Range(func(_, s any) bool {
		all = append(all, s.(index.Space).Text)
		return true
	})
	return all
}

// declare has a batch tell the index of a namespace, unless it knows as much.
func (c *Catalogue) declare(b *index.Batch, ns index.Namespace, text string) {
	s := index.Space{Text: text}
	s.Seq, s.Layout = c.store.Layout(text)
	if was, ok := c.spaces.Load(ns); !ok || was != s {
		c.spaces.Store(ns, s)
		b.Spaces = append(b.Spaces, s)
	}
}

// Forget implements tiers.Catalogue.
func (c *Catalogue) Forget(ctx context.Context, at ...tiers.Found) error {
	blocks := make([]index.Block, 0, len(at))
	for _, f := range at {
		if id, ok := format.ParsePath(f.Segment.Path); ok {
			blocks = append(blocks, index.Block{Info: f.Info, Place: index.Place{Segment: segmentOf(id.Part(), id.Number), Offset: f.Segment.Offset}})
		}
	}
	return unavailable(c.index.Forget(ctx, blocks...))
}

// Withdraw implements tiers.Catalogue. It waits for an AdoptParts that runs. After an error
// some names may be withdrawn and others not.
func (c *Catalogue) Withdraw(ctx context.Context, names ...block.Name) ([]bool, error) {
	if err := c.lock(ctx); err != nil {
		return nil, unavailable(err)
	}
	defer c.unlock()
	var older []bool
	var drops map[index.Segment][]index.Name
	if err := c.Whole(func() (err error) {
		older, drops, err = c.older(names, false)
		return err
	}); err != nil {
		return nil, unavailable(err)
	}
	for i, n := range names { // before the index has it: see segment.Store.Reload
		if !older[i] {
			continue
		}
		n.Seq--
		if err := c.store.Hide(n); err != nil {
			return nil, unavailable(err)
		}
	}
	return older, unavailable(c.tombstone(ctx, drops))
}

// older reports for which names the index has records below their Seq, withdrawn ones
// included, and returns what withdraws them there. Of a name there is one record; judged: a
// record of this rank's own that was read from a file, a withdrawal just below or a name just
// at Seq, counts only if it hides some of others. Else it may be one that was not recorded in a file.
func (c *Catalogue) older(names []block.Name, judged bool) ([]bool, map[index.Segment][]index.Name, error) {
	drops := map[index.Segment][]index.Name{}
	older, err := compare(c, len(names), func(i int) *block.Name { return &names[i] }, func(i int, e index.Entry) bool {
		own := judged && e.Name.Key != (index.Key{}) && c.Owns(partOf(e.Segment))
		if e.Name.Key == (index.Key{}) || e.Name.Seq >= names[i].Seq {
			return own && e.Name.Hides && !e.Name.Dropped && e.Name.Seq == names[i].Seq
		}
		if !e.Name.Dropped {
			drops[e.Segment] = append(drops[e.Segment], index.Name{Key: e.Name.Key, Seq: names[i].Seq - 1, Dropped: true})
		}
		itself := own && e.Name.Dropped && e.Name.Seq+1 == names[i].Seq
		return e.Name.Hides || !itself
	})
	return older, drops, err
}

// tombstone withdraws names in the index alone.
func (c *Catalogue) tombstone(ctx context.Context, drops map[index.Segment][]index.Name) error {
	for s, list := range drops {
		if err := c.index.PutBatch(ctx, index.Batch{Segment: s, Names: list}); err != nil {
			return err
		}
	}
	return nil
}

// State implements tiers.Catalogue.
func (c *Catalogue) State() tiers.CatalogueState {
	st := c.index.Stats()
	s := tiers.CatalogueState{
		Parts: len(c.shown.Load().parts), Segments: st.Segments, Entries: st.Entries, Read: c.read.Load(),
		Puts: st.Puts, Hits: st.Hits, Misses: st.Misses,
		Points: st.Points, Ranges: st.Ranges, Scanned: st.Scanned, Absent: st.Absent,
		DiskBytes: st.DiskBytes, MemoryBytes: st.MemoryBytes + uint64(max(st.CacheBytes, 0)),
		SizeRatio: st.SizeRatio, Runs: st.Runs, Retunes: st.Retunes, WriteAmp: st.WriteAmp, ReadAmp: st.ReadAmp,
	}
	if t := c.tuning.Load(); t != nil {
		s.Tuning, s.Tuner = t.Last.Verdict.String(), t.state()
	}
	if err := c.index.Err(); err != nil {
		s.Broken = err.Error()
	}
	return s
}

// Close makes what is known durable on this node and closes the index.
func (c *Catalogue) Close() error {
	c.shown.Store(&round{})
	return c.index.Close()
}
