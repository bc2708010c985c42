package tiertest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Config describes the tier under test.
type Config struct {
	// New opens, or re-opens, what lives in dir. capacity is in bytes; a tier
	// without bound ignores it. It must not call Recover.
	New func(t *testing.T, dir string, capacity int64) tiers.Tier

	// Persistent says that the tier's blocks outlive its process.
	Persistent bool

	// Bounded says that the tier obeys capacity.
	Bounded bool

	// Corrupt flips one payload byte of a stored block behind the tier's
	// back. Nil leaves the tests of corruption out.
	Corrupt func(t *testing.T, dir string, tr tiers.Tier, id block.ID)

	// Crash returns the directory that a process started after kill -9 of
	// tr's would open. Nil means dir as it is. Persistent tiers only.
	Crash func(t *testing.T, dir string, tr tiers.Tier) string

	// Torn damages what a crashed tier left in dir as a write that was cut in
	// the middle would have, without touching any acknowledged block. Nil
	// leaves that test out.
	Torn func(t *testing.T, dir string)
}

const (
	roomy = 64 << 20 // capacity of the tests that must not run out of room
	tight = 8 << 20  // capacity of the tests that must
)

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, c Config) {
	t.Run("round trip", c.roundTrip)
	t.Run("batch", c.batch)
	t.Run("read together", c.together)
	t.Run("exists", c.exists)
	t.Run("not found", c.notFound)
	t.Run("canceled", c.canceled)
	t.Run("pinned", c.pinned)
	t.Run("usage", c.usage)
	t.Run("concurrent", c.concurrent)
	t.Run("close", c.closing)
	t.Run("close during use", c.closeDuringUse)
	t.Run("recover error", c.recoverError)
	if c.Bounded {
		t.Run("full", c.full)
		t.Run("too large", c.tooLarge)
	}
	if c.Corrupt != nil {
		t.Run("corrupt", c.corrupt)
	}
	t.Run("reopen", c.reopen)
	t.Run("names", c.names)
	t.Run("layouts", c.layouts)
	if c.Persistent {
		t.Run("crash", c.crash)
		t.Run("many crashes", c.manyCrashes)
	}
	if c.Persistent && c.Torn != nil {
		t.Run("torn write", c.torn)
	}
	t.Run("model", c.model)
	t.Run("memory", c.memory)
	t.Run("merge", c.merge)
}

// opened is a tier with what its Recover handed over.
type opened struct {
	tiers.Tier
	dir    string
	blocks map[block.ID]block.Info
	names  map[nameKey]nameRecord
}

type nameKey struct{ namespace, key string }

// nameRecord is the newest word on one name.
type nameRecord struct {
	id      block.ID
	name    block.Name
	dropped bool
}

// open opens the tier in dir and recovers it.
func (c Config) open(t *testing.T, dir string, capacity int64) *opened {
	t.Helper()
	o := &opened{
		Tier:   c.New(t, dir, capacity),
		dir:    dir,
		blocks: map[block.ID]block.Info{},
		names:  map[nameKey]nameRecord{},
	}
	if err := o.Recover(func(e tiers.Entry) error { o.add(t, e); return nil }); err != nil {
		t.Fatalf("Recover: %v", err)
	}
	if !c.Persistent && len(o.blocks)+len(o.names) > 0 {
		t.Fatalf("a tier that is not persistent recovered %d blocks", len(o.blocks))
	}
	return o
}

func (o *opened) add(t *testing.T, e tiers.Entry) {
	t.Helper()
	if !e.Info.ID.IsZero() {
		if _, twice := o.blocks[e.Info.ID]; twice {
			t.Errorf("Recover handed block %v over twice", e.Info.ID)
		}
		o.blocks[e.Info.ID] = e.Info
	} else if len(e.Names) > 0 {
		t.Errorf("Recover handed over names of no block: %+v", e.Names)
	}
	for _, n := range e.Names {
		o.word(n, nameRecord{id: e.Info.ID, name: n})
	}
	for _, n := range e.Dropped {
		o.word(n, nameRecord{name: n, dropped: true})
	}
}

// word keeps the newest record of a name.
func (o *opened) word(n block.Name, r nameRecord) {
	k := nameKey{n.Namespace, n.Key}
	if old, ok := o.names[k]; !ok || old.name.Seq < n.Seq {
		o.names[k] = r
	}
}

// fresh opens an empty tier that is closed when the test ends.
func (c Config) fresh(t *testing.T, capacity int64) *opened {
	t.Helper()
	o := c.open(t, t.TempDir(), capacity)
	t.Cleanup(func() { o.Close() })
	return o
}

// reopened closes o and opens its directory again.
func (c Config) reopened(t *testing.T, o *opened, capacity int64) *opened {
	t.Helper()
	if err := o.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	n := c.open(t, o.dir, capacity)
	t.Cleanup(func() { n.Close() })
	return n
}

// crashed opens what o left behind without closing o.
func (c Config) crashed(t *testing.T, o *opened, capacity int64) *opened {
	t.Helper()
	dir := o.dir
	if c.Crash != nil {
		dir = c.Crash(t, dir, o.Tier)
	}
	n := c.open(t, dir, capacity)
	t.Cleanup(func() { n.Close() })
	return n
}

// payload returns size bytes that only (seed, size) determine.
func payload(seed uint64, size int64) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
		key[8+i] = byte(uint64(size) >> (8 * i))
	}
	p := make([]byte, size)
	rand.NewChaCha8(key).Read(p)
	for i := int64(1); i < size && size >= 4096 && seed%3 != 0; i += 2 {
		p[i] = 0x3f // a tier that encodes can halve it
	}
	return p
}

// item is a block of size bytes determined by seed.
func item(seed uint64, size int64, names ...block.Name) tiers.Item {
	p := payload(seed, size)
	return tiers.Item{
		Info:  block.Info{ID: block.Sum(block.Bits128, p), Size: size, CRC: block.CRC(p)},
		Names: names,
		Data:  p,
	}
}

func put(t *testing.T, tr tiers.Tier, items ...tiers.Item) {
	t.Helper()
	if err := tr.Put(t.Context(), items...); err != nil {
		t.Fatalf("Put of %d items: %v", len(items), err)
	}
}

// readBack reads a block by every way its pin offers and compares it with it.
func readBack(t *testing.T, tr tiers.Tier, it tiers.Item) {
	t.Helper()
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatalf("Pin of %d bytes %v: %v", it.Info.Size, it.Info.ID, err)
	}
	defer p.Release()
	samePin(t, p, it)
}

func samePin(t *testing.T, p tiers.Pin, it tiers.Item) {
	t.Helper()
	if p.Info() != it.Info {
		t.Errorf("Info = %+v, want %+v", p.Info(), it.Info)
	}
	dst := make([]byte, it.Info.Size)
	if err := p.ReadInto(t.Context(), dst); err != nil {
		t.Fatalf("ReadInto of %d bytes %v: %v", it.Info.Size, it.Info.ID, err)
	}
	if !bytes.Equal(dst, it.Data) {
		t.Fatalf("wrong bytes from ReadInto of %d bytes %v", it.Info.Size, it.Info.ID)
	}
	if b := p.Bytes(); b != nil && !bytes.Equal(b, it.Data) {
		t.Fatalf("wrong bytes in place of %d bytes %v", it.Info.Size, it.Info.ID)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

func wantMiss(t *testing.T, tr tiers.Tier, id block.ID) {
	t.Helper()
	p, err := tr.Pin(id)
	if err == nil {
		p.Release()
	}
	wantErr(t, "Pin of an absent block", err, tiers.ErrNotFound)
}
