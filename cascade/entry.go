package cascade

import (
	"fmt"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
)

// Condition is when a put may take effect.
type Condition uint8

const (
	Always    Condition = iota // replace what the name points to
	IfAbsent                   // only a name that is not visible (Redis NX)
	IfPresent                  // only a name that is visible (Redis XX)
)

// Entry describes the name under which a block is put.
type Entry struct {
	Namespace string
	Key       string    // opaque, 1..block.MaxKey bytes
	Parent    string    // key of the preceding block of the chain, "" at its head
	Prefix    bool      // the engine marks it as a shared prefix
	Generated bool      // of generated tokens, not of a prompt: see Limits.StorePromptOnly
	Bound     bool      // visible only while Parent is: the second half of a pair
	Expires   time.Time // zero: never
	KeepTTL   bool      // keep the expiry of the name it replaces
	When      Condition

	depth uint32     // of a child of what the catalogue alone has
	away  *time.Time // when Parent expires, which the catalogue alone has; nil: it has not
}

// Check reports whether the entry can be stored; the error matches ErrBadEntry.
func (e Entry) Check() error {
	switch {
	case len(e.Key) == 0 || len(e.Key) > block.MaxKey:
		return fmt.Errorf("%w: key has %d bytes, want 1 to %d", ErrBadEntry, len(e.Key), block.MaxKey)
	case len(e.Parent) > block.MaxKey:
		return fmt.Errorf("%w: parent key has %d bytes, want at most %d", ErrBadEntry, len(e.Parent), block.MaxKey)
	case e.Parent == e.Key:
		return fmt.Errorf("%w: key %q is its own parent", ErrBadEntry, e.Key)
	case e.Bound && e.Parent == "":
		return fmt.Errorf("%w: key %q is bound to no parent", ErrBadEntry, e.Key)
	}
	return CheckNamespace(e.Namespace)
}

// CheckNamespace reports whether a namespace can have names; the error matches ErrBadEntry.
func CheckNamespace(ns string) error { return residency.CheckNamespace(ns) }

// record is the name as tiers have it; its Depth and Seq are not known yet.
func (e *Entry) record() block.Name {
	return block.Name{
		Namespace: e.Namespace, Key: e.Key, Parent: e.Parent, Prefix: e.Prefix, Bound: e.Bound, Expires: e.Expires, Depth: e.depth,
	}
}

// NameInfo is what Stat returns of a name.
type NameInfo struct {
	ID       BlockID
	Size     int64
	Parent   string
	Inferred bool // nobody named Parent: it was inferred from the order of requests
	Depth    uint32
	Refs     int // live names of the same block on this rank; of the job's see Refs
	Tiers    []string
	Prefix   bool
	Expires  time.Time
	Dirty    bool // not yet in the cold tier
}

// ProbeResult is the longest cached prefix of a chain.
type ProbeResult struct {
	Hits  int            `json:"hits"`  // leading keys that are cached
	Bytes int64          `json:"bytes"` // their payload
	Tiers map[string]int `json:"tiers"` // hits by the fastest tier that has them
	Runs  []Run          `json:"runs"`  // the same in the order of the chain
}

// Run is some keys of a chain, one after the other, that the same tier would serve.
type Run struct {
	Tier   string `json:"tier"`
	Hits   int    `json:"hits"`
	Bytes  int64  `json:"bytes"`
	LoadUS int64  `json:"load_us"` // estimate of how long it takes to load the chain up to here, in microseconds
}

// LoadUS is the estimate of how long it takes to load the whole prefix, in microseconds.
func (r *ProbeResult) LoadUS() int64 {
	if len(r.Runs) == 0 {
		return 0
	}
	return r.Runs[len(r.Runs)-1].LoadUS
}

// PutResult is the outcome of one put.
type PutResult struct {
	ID        BlockID
	Duplicate bool // the bytes were stored already: one more name, no copy
}
