package residency

import (
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Stats is a snapshot of the store. Counters start at zero with the process.
type Stats struct {
	Names           int          `json:"names"`
	Blocks          int          `json:"blocks"`
	BytesReferenced int64        `json:"bytes_referenced"`     // Σ over names of their block's size
	BytesStored     int64        `json:"bytes_stored"`         // Σ over distinct blocks
	OwnReferenced   int64        `json:"own_bytes_referenced"` // BytesReferenced without names that are copies of other ranks': its sum over the ranks of a job counts each once
	OwnStored       int64        `json:"own_bytes_stored"`     // Σ over distinct blocks that such names stand for
	PendingIDs      int          `json:"pending_ids"`          // acknowledged, not hashed yet
	PendingBytes    int64        `json:"pending_bytes"`
	DirtyBlocks     int          `json:"dirty_blocks"`
	DirtyBytes      int64        `json:"dirty_bytes"`
	Leases          int          `json:"leases"`
	Views           int          `json:"views"` // views not released yet
	Puts            uint64       `json:"puts"`
	Duplicates      uint64       `json:"duplicates"`      // puts, or finalized ids, whose bytes were stored already
	Hits            uint64       `json:"hits"`            // gets that found their block
	Misses          uint64       `json:"misses"`          // gets that did not
	Lookups         uint64       `json:"lookups"`         // names that were looked for without a get; of a probe those up to the first that is missing
	Found           uint64       `json:"found"`           // of Lookups
	Rejected        uint64       `json:"rejected"`        // puts dropped for want of room
	Lost            uint64       `json:"lost"`            // dirty blocks dropped because the cold tier refused them
	Unwritten       uint64       `json:"unwritten"`       // dirty blocks dropped because too few asked for them: see Limits.StoreThreshold
	Generated       uint64       `json:"generated"`       // dirty blocks dropped because only prompts are written: see Limits.StorePromptOnly
	Shed            uint64       `json:"shed"`            // dirty blocks dropped because there was no budget to write them: see Limits.WriteRate and DeepWriteRate
	Forgotten       uint64       `json:"forgotten"`       // names given up for the bound on the heap they take
	NameBytes       int64        `json:"name_bytes"`      // of that heap
	NameLimit       int64        `json:"name_limit"`      // its bound, 0: none
	Corrupt         uint64       `json:"corrupt"`         // blocks withdrawn for a bad checksum
	Replicas        uint64       `json:"replicas"`        // blocks of other ranks that were kept here
	Prefetched      uint64       `json:"prefetched"`      // blocks that were brought here ahead of their gets
	PrefetchHits    uint64       `json:"prefetch_hits"`   // of these, asked for in time
	PrefetchWasted  uint64       `json:"prefetch_wasted"` // of these, here in vain
	Relied          uint64       `json:"relied"`          // blocks of which another rank keeps the bytes, so that this one does not
	Losses          LossCounts   `json:"losses"`          // keys of gets and look-ups that were lost on the way, by step and reason
	Recovered       RecoverStats `json:"recovered"`
	Spilled         SpilledStats `json:"spilled"` // none of it is in Names, Blocks, Recovered and the bytes
	Adopted         RecoverStats `json:"adopted"` // of other ranks' parts of the cold tier, while running
	Tiers           []TierStats  `json:"tiers"`   // fastest first

	Catalogue  *tiers.CatalogueState `json:"catalogue,omitempty"` // of what others left in the cold tier
	Orphans    *OrphanStats          `json:"estate,omitempty"`    // of others in the cold tier, where it has a budget
	Namespaces []NamespaceStats      `json:"namespaces"`          // by name
}

// SpilledStats is what lies in this rank's own files and the catalogue alone knows of, as of
// the last look, at most 10 seconds ago.
type SpilledStats struct {
	Files  int   `json:"files"`
	Blocks int   `json:"blocks"`
	Names  int   `json:"names"` // about
	Bytes  int64 `json:"bytes"` // of the files
}

// TierStats is one tier's part of Stats.
type TierStats struct {
	Name     string       `json:"name"`
	Policy   string       `json:"policy,omitempty"`
	Usage    tiers.Usage  `json:"usage"`
	Hits     uint64       `json:"hits"`
	Misses   uint64       `json:"misses"` // gets that were served by a slower tier, or by none
	HitBytes uint64       `json:"hit_bytes"`
	Promoted uint64       `json:"promoted"` // blocks copied up into this tier
	Demoted  uint64       `json:"demoted"`  // victims of this tier that went one tier down
	Evicted  uint64       `json:"evicted"`  // blocks this tier gave up
	Errors   uint64       `json:"errors"`   // operations that failed for another reason than a miss or lack of room
	Load     LoadStats    `json:"load"`
	Budget   *BudgetStats `json:"budget,omitempty"` // nil: there are no limits

	tiers.Stats // of files, and of memory below the host's
}

// BudgetStats is what may be read from a level and written to it. A limit of 0 is none.
type BudgetStats struct {
	Reads     int64 `json:"read_bytes_per_second"`
	Writes    int64 `json:"write_bytes_per_second"`
	ReadWait  int64 `json:"read_wait_us"`  // that a load has now, in microseconds
	WriteWait int64 `json:"write_wait_us"` // that a write has now
}

// NamespaceStats is one namespace's part of Stats. Namespaces that nobody put a
// name into are among them when they were asked for one, as long as there are few.
type NamespaceStats struct {
	Name            string `json:"name"`
	Names           int    `json:"names"`
	BytesReferenced int64  `json:"bytes_referenced"`
	Spilled         int    `json:"spilled"`                    // names that only this rank's own files have, not in Names
	SpilledBytes    int64  `json:"spilled_bytes"`              // Σ over those of their block's size
	Estimate        bool   `json:"spilled_estimate,omitempty"` // Spilled and SpilledBytes are no count: there are many
	Recovered       int    `json:"recovered"`                  // names that Open found
	Puts            uint64 `json:"puts"`
	Aliases         uint64 `json:"aliases"` // names that were put for bytes which another name of the namespace had; blocks of 4 KiB and more
	Lookups         uint64 `json:"lookups"`
	Found           uint64 `json:"found"`
	Hits            uint64 `json:"hits"`
	Misses          uint64 `json:"misses"`
	Inferred        uint64 `json:"inferred"` // parents that nobody named, inferred from the order of requests

	// PrefillBlockUS is how long an engine takes to compute a block, in microseconds, as learned from when
	// blocks are put that were missing; 0: not known.
	PrefillBlockUS int64 `json:"prefill_block_us,omitempty"`

	Layout *block.Layout `json:"layout,omitempty"` // nil: not known
}

// RecoverStats is what Open found.
type RecoverStats struct {
	Blocks int   `json:"blocks"`
	Names  int   `json:"names"`
	Bytes  int64 `json:"bytes"`
}

// OrphanStats is what runs of other numbers and jobs take of the budget for the
// cold tier.
type OrphanStats struct {
	Parts     int    `json:"parts"` // of ended runs, that may be adopted
	Bytes     int64  `json:"bytes"` // of those
	Runs      int    `json:"runs"`  // of other jobs, that live
	RunBytes  int64  `json:"run_bytes"`
	Inherited uint64 `json:"inherited_total"` // parts that were adopted
	Budget    int64  `json:"budget"`          // that is left for this rank's own files; 0: none
}

// RemoteTier is the word for other ranks' memory in statistics.
const RemoteTier = "remote"
