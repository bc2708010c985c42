package cascade

import (
	"context"
	"log/slog"
	"time"

	"cascadekv/tiers"
)

// Options configure a Store. The zero value of every field but Memory is useful.
type Options struct {
	Memory []tiers.Memory // fastest first, at least one
	Cold   tiers.Tier     // nil: victims of the last memory tier are dropped
	Policy string         // of each memory tier: "prefix" (default), "lru", "paper"
	IDBits int            // block.Bits128 (default) or block.Bits256

	// RoomDeadline bounds how long a put waits for room, and FetchDeadline
	// how long a get waits for the cold tier, before it is a miss.
	RoomDeadline  time.Duration // default 5 s
	FetchDeadline time.Duration // default 3 s: redis-py gives up after 5 s

	// CleanAbove is the share of the last memory tier above which cold dirty
	// blocks are written to the cold tier ahead of need. Default 0.75.
	CleanAbove float64

	// LeaseShare bounds the share of a memory tier that leases may hold; above
	// it the oldest lease gives way. Default 0.5.
	LeaseShare float64

	// SkipVerify serves memory hits without checking their CRC32C.
	SkipVerify bool

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default
}

// Store is one rank's cache. All methods are safe for concurrent use.
type Store struct{}

// Open takes over the tiers, recovers what earlier incarnations left in them
// and returns a Store that owns them.
func Open(ctx context.Context, o Options) (*Store, error) { panic("sketch") }

// Close drains dirty blocks to the cold tier until ctx ends, then closes the tiers.
func (s *Store) Close(ctx context.Context) error { panic("sketch") }

// Drain completes pending ids and writes every dirty block to the cold tier.
// It returns how many blocks it wrote.
func (s *Store) Drain(ctx context.Context) (int, error) { panic("sketch") }

// Put stores keyData ‖ valueData under e by content: the id is computed at
// once, and bytes that are stored already are not copied again (Algorithm 1).
// The slices are only read. Errors: ErrNoRoom, ErrTooLarge, ErrCondition, ErrBadEntry.
func (s *Store) Put(ctx context.Context, e Entry, keyData, valueData []byte) (PutResult, error) {
	panic("sketch")
}

// PutItem is one block of a PutBatch.
type PutItem struct {
	Entry Entry
	Data  []byte
}

// PutBatch stores blocks of one chain, head first, as one request of the
// eviction policy. Items stored before an error stay stored; their number is
// len of the result.
func (s *Store) PutBatch(ctx context.Context, items []PutItem) ([]PutResult, error) {
	panic("sketch")
}

// Stage reserves room for size bytes that will arrive piecemeal and be put by
// name: the id is computed later. Errors: ErrNoRoom, ErrTooLarge.
func (s *Store) Stage(ctx context.Context, size int64) (*Stage, error) { panic("sketch") }

// Stage is room for an arriving block. It belongs to one goroutine, which must
// end it with Commit or Abort.
type Stage struct{}

// Bytes is the room, exactly size bytes of tier memory.
func (st *Stage) Bytes() []byte { panic("sketch") }

// Filled tells that n more bytes, after those told before, are in place; it
// extends the checksum while they are still in the CPU's cache.
func (st *Stage) Filled(n int) { panic("sketch") }

// Commit publishes the staged block under e, whole and at once. All bytes must
// have been told by Filled. Errors: ErrCondition, ErrBadEntry, ErrNoRoom.
func (st *Stage) Commit(e Entry) error { panic("sketch") }

// Abort gives the room back. After Commit or Abort it does nothing.
func (st *Stage) Abort() { panic("sketch") }

// Get returns a pinned view of the block that (ns, key) names (Algorithm 2).
// The caller must Release it. The error matches ErrMiss for anything the
// caller can answer by computing the block, a failing tier included.
func (s *Store) Get(ctx context.Context, ns, key string) (*View, error) { panic("sketch") }

// GetBatch gets the keys of one chain, head first, as one request of the
// eviction policy. Misses are nil.
func (s *Store) GetBatch(ctx context.Context, ns string, keys []string) ([]*View, error) {
	panic("sketch")
}

// View is a block pinned for reading. Release it exactly once; until then the
// bytes neither move nor change.
type View struct{}

func (v *View) Bytes() []byte { panic("sketch") } // read-only; dies with Release
func (v *View) Size() int64   { panic("sketch") }
func (v *View) ID() BlockID   { panic("sketch") } // provisional until completed
func (v *View) Tier() string  { panic("sketch") } // that served the hit
func (v *View) Release()      { panic("sketch") }

// File returns the descriptor and offset of Bytes for sendfile; false when the
// bytes are not in a file.
func (v *View) File() (fd int, offset int64, ok bool) { panic("sketch") }

// Probe returns the longest cached prefix of a chain of keys, head first. It
// neither leases nor counts as an access.
func (s *Store) Probe(ns string, keys []string) ProbeResult { panic("sketch") }

// Contains reports whether (ns, key) is visible. It is not an access.
func (s *Store) Contains(ns, key string) bool { panic("sketch") }

// Stat describes a visible name; false when there is none.
func (s *Store) Stat(ns, key string) (NameInfo, bool) { panic("sketch") }

// Lease promises owner that a visible name stays readable on this rank for d,
// within the lease budget; false when there is no such name. A longer lease of
// the same owner replaces a shorter one.
func (s *Store) Lease(ns, key, owner string, d time.Duration) bool { panic("sketch") }

// Unlease gives back every lease of owner.
func (s *Store) Unlease(owner string) { panic("sketch") }

// Delete withdraws a name; its block goes with its last name. It reports
// whether the name was visible.
func (s *Store) Delete(ns, key string) bool { panic("sketch") }

// Expire sets when a visible name ends; the zero time means never.
func (s *Store) Expire(ns, key string, at time.Time) bool { panic("sketch") }

// Clear withdraws all names of a namespace, or of all of them when every is
// true, and returns how many there were.
func (s *Store) Clear(ns string, every bool) int { panic("sketch") }

// Scan calls fn for about count visible names, starting at cursor (0: from the
// start), and returns the next cursor, 0 at the end. A name that exists for
// the whole scan is seen at least once. fn must not call the store.
func (s *Store) Scan(ns string, cursor uint64, count int, fn func(key string)) uint64 {
	panic("sketch")
}

// Len returns the number of names in a namespace.
func (s *Store) Len(ns string) int { panic("sketch") }

// Sweep forgets expired names and ended leases. The owner calls it about once
// a second.
func (s *Store) Sweep() { panic("sketch") }

// Stats returns a snapshot.
func (s *Store) Stats() Stats { panic("sketch") }
