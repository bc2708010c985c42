package catalogue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
)

// ErrUnavailable says that there is nowhere to keep a catalogue, or that the
// one there is cannot be used now.
var ErrUnavailable = errors.New("catalogue: cannot be used")

// Options configure a Catalogue. Store and Index.Dir are required.
type Options struct {
	// Store reads the segments. It should have been opened with OwnOnly and
	// Apart; the catalogue does not close it.
	Store *segment.Store

	// Index is where the catalogue lives and how it is tuned. Its Campaign
	// should name the directory of segments and the rank.
	Index index.Options

	// Readers is how many segments are read at once. Default 8.
	Readers int
}

// Found is a block with one of its names, and where it lies. Of a withdrawn name
// only Namespace, Key and Seq of Name count.
type Found struct {
	Info    block.Info
	Name    block.Name
	Dropped bool
	Place   segment.Place
}

// Catalogue tells where blocks of other ranks lie. All methods are safe for
// concurrent use.
type Catalogue struct {
	store   *segment.Store
	index   *index.Index
	readers int

	turn  chan struct{} // holds one while somebody changes what is known
	shown atomic.Pointer[round]
	texts sync.Map // index.Namespace → string: known to the index
	read  atomic.Uint64

	left map[segment.Incarnation]bool // left out of the last round; with the turn

	asked  atomic.Int64 // when the last Find was, Unix nanoseconds
	tuning atomic.Pointer[Tuning]
}

// round is what the last TakeIn made findable.
type round struct {
	parts map[segment.Incarnation]bool
	fresh map[index.Segment]bool
}

// Open opens the catalogue in Index.Dir, or makes an empty one. Errors:
// ErrUnavailable, with index.ErrSharedFS when the directory is not node-local.
func Open(o Options) (*Catalogue, error) {
	x, err := index.Open(o.Index)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if o.Readers <= 0 {
		o.Readers = 8
	}
	c := &Catalogue{store: o.Store, index: x, readers: o.Readers, turn: make(chan struct{}, 1), left: map[segment.Incarnation]bool{}}
	c.shown.Store(&round{})
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

// Err is why nothing is found, nil while the index works.
func (c *Catalogue) Err() error { return c.index.Err() }

// Emptied says why the catalogue began empty; nil when it kept what was there.
func (c *Catalogue) Emptied() error { return c.index.Emptied() }

// Find tells where the blocks of names lie, in parallel to keys: the id is zero
// for a miss. It is fastest for the keys of one chain in their order, and may
// read from the index's disk.
func (c *Catalogue) Find(ns string, keys []string) []Found {
	c.touch()
	return c.find(ns, keys, c.index.FindBatch)
}

// Peek is Find for the caller's upkeep, which no request waits for: the index is
// not tuned for it, and it disturbs no quiet moment.
func (c *Catalogue) Peek(ns string, keys []string) []Found {
	return c.find(ns, keys, c.index.PeekBatch)
}

func (c *Catalogue) find(ns string, keys []string, look func([]index.Key, []index.Entry) (int, error)) []Found {
	found := make([]Found, len(keys))
	parts := c.shown.Load().parts
	if len(parts) == 0 {
		return found
	}
	space := index.NamespaceOf(ns)
	hashes, entries := make([]index.Key, len(keys)), make([]index.Entry, len(keys))
	for i, k := range keys {
		hashes[i] = space.Key(k)
	}
	if _, err := look(hashes, entries); err != nil {
		return found // a miss; Err tells
	}
	for i, e := range entries {
		if e.Block.Info.ID.IsZero() || !parts[partOf(e.Segment)] {
			continue
		}
		if f, ok := foundOf(e); ok && f.Name.Key == keys[i] {
			f.Name.Namespace = ns
			found[i] = f
		}
	}
	return found
}

// foundOf is an entry in the caller's words but for the namespace.
func foundOf(e index.Entry) (Found, bool) {
	_, key, parent, ok := cutNote(e.Name.Note)
	p := e.Block.Place
	return Found{
		Info: e.Block.Info,
		Name: block.Name{
			Key: key, Parent: parent, Depth: e.Name.Depth, Seq: e.Name.Seq, Expires: e.Name.Expires,
			Prefix: e.Name.Prefix, Bound: e.Name.Bound,
		},
		Place: segment.Place{
			Path:   segment.Path(partOf(p.Segment), p.Segment.File),
			Offset: p.Offset, Stored: p.Stored, StoredCRC: p.StoredCRC, Codec: p.Codec,
		},
	}, ok
}

func partOf(s index.Segment) segment.Incarnation {
	return segment.Incarnation{Rank: s.Rank, Number: s.Incarnation}
}

// errEnough ends a walk through the index.
var errEnough = errors.New("enough")

// Names calls fn for every name that is found, or with fresh for those alone
// that became so by the last round, until fn returns false. What changes
// meanwhile may be seen or not. Errors: those of the index; ErrUnavailable when
// a text is missing.
func (c *Catalogue) Names(fresh bool, fn func(Found) bool) error {
	r := c.shown.Load()
	if len(r.parts) == 0 || fresh && len(r.fresh) == 0 {
		return nil
	}
	err := c.index.Names(func(e index.Entry) error {
		if !r.parts[partOf(e.Segment)] || fresh && !r.fresh[e.Segment] {
			return nil
		}
		f, ok := foundOf(e)
		ns, _, _, _ := cutNote(e.Name.Note)
		text, err := c.text(ns)
		if err != nil || !ok {
			return err
		}
		f.Name.Namespace = text
		if !fn(f) {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// text is that of a namespace.
func (c *Catalogue) text(ns index.Namespace) (string, error) {
	if t, ok := c.texts.Load(ns); ok {
		return t.(string), nil
	}
	t, err := c.index.Text(ns)
	if err != nil {
		return "", fmt.Errorf("%w: the text of a namespace: %w", ErrUnavailable, err)
	}
	c.texts.Store(ns, t)
	return t, nil
}

// Forget takes blocks out that are not where they should be. Errors: those of
// the index, the context's.
func (c *Catalogue) Forget(ctx context.Context, ids ...block.ID) error {
	return c.index.Forget(ctx, ids...)
}

// Withdraw voids names, of which Namespace, Key and Seq count: what was recorded
// below that Seq. It tells of which there was something recorded, is durable with
// the store's next Put, Sync or Close, and waits for a TakeIn that runs. Errors:
// those of the index and of the store, the context's; then some may be withdrawn
// and others not.
func (c *Catalogue) Withdraw(ctx context.Context, names ...block.Name) ([]bool, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.unlock()
	older, err := c.void(ctx, names)
	if err != nil {
		return nil, err
	}
	for i, n := range names {
		if !older[i] {
			continue
		}
		n.Seq--
		if err := c.store.Hide(n); err != nil {
			return nil, err
		}
	}
	return older, nil
}

// void withdraws names in the index alone, and tells of which there are records
// below their Seq in it, withdrawn ones included.
func (c *Catalogue) void(ctx context.Context, names []block.Name) ([]bool, error) {
	hashes, entries := make([]index.Key, len(names)), make([]index.Entry, len(names))
	for i, n := range names {
		hashes[i] = index.NamespaceOf(n.Namespace).Key(n.Key)
	}
	if _, err := c.index.PeekBatch(hashes, entries); err != nil {
		return nil, err
	}
	older := make([]bool, len(names))
	drops := map[index.Segment][]index.Name{}
	for i, e := range entries {
		if e.Name.Key == (index.Key{}) || e.Name.Seq >= names[i].Seq {
			continue
		}
		older[i] = true
		if !e.Name.Dropped {
			drops[e.Segment] = append(drops[e.Segment], index.Name{Key: e.Name.Key, Seq: names[i].Seq - 1, Dropped: true})
		}
	}
	for s, list := range drops {
		if err := c.index.PutBatch(ctx, index.Batch{Segment: s, Names: list}); err != nil {
			return nil, err
		}
	}
	return older, nil
}

// Stats is the state of a catalogue at one moment.
type Stats struct {
	index.Stats
	Parts int    // that are shown
	Read  uint64 // segments whose contents were read, since Open

	Tuning *Tuning // nil: it is off, or has not judged
}

// Stats returns counters and sizes.
func (c *Catalogue) Stats() Stats {
	return Stats{Stats: c.index.Stats(), Parts: len(c.shown.Load().parts), Read: c.read.Load(), Tuning: c.tuning.Load()}
}

// Close makes what is known durable on this node and closes the index.
func (c *Catalogue) Close() error {
	c.shown.Store(&round{})
	return c.index.Close()
}
