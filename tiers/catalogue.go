package tiers

import (
	"context"

	"cascadekv/internal/block"
)

// Found is a block that lies in a part of another rank, with one of its names.
type Found struct {
	Info    block.Info
	Name    block.Name
	Dropped bool // the name was withdrawn at its Seq; only Namespace, Key and Seq are set
	Segment Segment
}

// Presence is what a Catalogue reports of a name without saying where its block lies. The
// zero value is a miss.
type Presence struct {
	Found bool
	Bound bool   // as of block.Name
	Size  int64  // of the block, in bytes
	Seq   uint64 // of the name's record
}

// Taken is what one round of a Catalogue did.
type Taken struct {
	Read    int     // files whose contents were read
	Blocks  int     // in them
	Names   int     // in them
	Bytes   int64   // of the blocks
	Gone    int     // files that are no more
	Fresh   bool    // names can be found that could not be before
	Skipped []error // files that could not be read, or only in part
	Left    []Left  // what each part is, in parallel to them; nil after an error
}

// Left is what a run of another rank number left in a shared directory, or is writing
// there.
type Left struct {
	Bytes int64 // that it takes
	Ended bool  // nobody owns it any more: it may be inherited
}

// Catalogue knows what parts of other ranks hold, and this process's own files,
// outside the heap. What it knows are places: blocks are read by Files.ReadSegment. All methods are
// safe for concurrent use.
type Catalogue interface {
	// AdoptParts brings the catalogue up to date with some parts and shows these, and
	// no others, from then on. Before that it calls fn with the names that are new
	// to it, and of blocks in other files with no more of their Info than the id; fn must not keep the slice. A catalogue that broke is begun anew. It
	// may take long. Errors: ErrUnavailable.
	AdoptParts(ctx context.Context, parts []Part, fn func([]Found)) (Taken, error)

	// Find returns where the blocks of names lie, in parallel to keys, best those
	// of a chain in their order: the id is zero for a miss. It may read from a
	// local disk.
	Find(ns string, keys []string) []Found

	// Probe is Find for those who ask only whether blocks are there, at a fraction of its
	// cost.
	Probe(ns string, keys []string) []Presence

	// Peek is Find for upkeep that no request waits for: it is no reason to shape
	// the catalogue for it.
	Peek(ns string, keys []string) []Found

	// Own returns which blocks lie in this process's own files and were not evicted, in parallel
	// to ids: the id is zero for one that does not. Of a name nothing is known.
	Own(ids []block.ID) []Found

	// Blocks returns where blocks lie, in parallel to ids, in the parts that are shown and
	// in this process's own files: the id is zero for a miss. Of a name nothing is known.
	// It may read from a local disk.
	Blocks(ids []block.ID) []Found

	// ScanOwn calls fn for names of a namespace, or of all, that lie in this process's own
	// files, from a cursor on, 0 at first, until it returns false or many names
	// were passed over. It returns the cursor to go on with, 0 at the end,
	// of which the two lowest bits may be cleared: names lie evenly over its
	// 64 bits. What is there all the while is seen at least once. Errors: ErrUnavailable.
	ScanOwn(ns string, all bool, cursor uint64, fn func(Found) bool) (next uint64, err error)

	// Newer reports of which names there are later records, or withdrawals as late as
	// they. Errors: ErrUnavailable.
	Newer(names []block.Name) ([]bool, error)

	// Namespaces lists the namespaces that are known, in no order.
	Namespaces() []string

	// Names calls fn for all names, or with fresh for those alone that could not
	// be found before the last AdoptParts, until fn returns false. Errors:
	// ErrUnavailable.
	Names(fresh bool, fn func(Found) bool) error

	// Withdraw voids what is recorded of names below their Seq, of which
	// Namespace, Key and Seq count, and reports for which there is such a record. It
	// is as durable as an Unlink. Errors: ErrUnavailable; it may then be called
	// again.
	Withdraw(ctx context.Context, names ...block.Name) ([]bool, error)

	// Forget takes out blocks that do not lie where they should: of each Info.ID and
	// Segment count. One that the catalogue has elsewhere by now stays.
	Forget(ctx context.Context, at ...Found) error

	// Err is why nothing is found, nil while that is not so. It does not wait.
	Err() error

	// State is the catalogue at one moment. It may wait for a second.
	State() CatalogueState
}

// CatalogueState is what people see of a Catalogue. Counters start with the
// process.
type CatalogueState struct {
	Broken      string  `json:"broken,omitempty"` // why nothing is found
	Parts       int     `json:"parts"`            // that are shown
	Segments    int     `json:"segments"`
	Entries     uint64  `json:"entries"` // blocks and names
	Read        uint64  `json:"segments_read_total"`
	Puts        uint64  `json:"puts_total"`
	Hits        uint64  `json:"hits_total"`    // names that were found
	Misses      uint64  `json:"misses_total"`  // names that were not
	Points      uint64  `json:"points_total"`  // searches that found one entry
	Ranges      uint64  `json:"ranges_total"`  // searches that found one and went on to the next
	Scanned     uint64  `json:"scanned_total"` // entries of these
	Absent      uint64  `json:"absent_total"`  // searches that found nothing
	DiskBytes   uint64  `json:"disk_bytes"`
	MemoryBytes uint64  `json:"memory_bytes"`
	SizeRatio   int     `json:"size_ratio"` // T
	Runs        int     `json:"runs"`       // K
	Retunes     uint64  `json:"retunes_total"`
	Tuning      string  `json:"tuning,omitempty"` // the tuner's last verdict; none: it is off, or has not judged
	Tuner       *Tuner  `json:"tuner,omitempty"`  // nil: likewise
	WriteAmp    float64 `json:"write_amplification"`
	ReadAmp     int     `json:"read_amplification"`
}

// Tuner is what shapes a Catalogue, at one moment. Costs are predicted pages for
// each operation. The mix is of the last operations: shares of a whole.
type Tuner struct {
	Verdicts map[string]uint64  `json:"verdicts_total"` // judgements, by verdict
	Mix      map[string]float64 `json:"mix"`            // by kind: put, hit, range, miss
	Scanned  float64            `json:"scanned"`        // entries of a range, on average
	Cost     float64            `json:"cost"`           // as the catalogue is shaped; 0 before the first operation
	Best     float64            `json:"best_cost"`      // in the best shape
	BestT    int                `json:"best_size_ratio"`
	BestK    int                `json:"best_runs"`
}
