package cascade

import (
	"cascadekv/cascade/content"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/sharedindex"
)

// What the parts of the store define, and its users name.
type (
	// Options are what Open is given.
	Options = residency.Options
	// Limits are the options that may change while the store runs.
	Limits = residency.Limits
	// BlockID is the address of a block.
	BlockID = residency.BlockID
	// View is a block pinned for reading.
	View = residency.View
	// Stats is a snapshot of the store.
	Stats = residency.Stats
	// TierStats is one tier's part of Stats.
	TierStats = residency.TierStats
	// NamespaceStats is one namespace's part of Stats.
	NamespaceStats = residency.NamespaceStats
	// RecoverStats is what Open, or an adoption, took in.
	RecoverStats = residency.RecoverStats
	// OrphanStats is what others take of the cold tier's budget.
	OrphanStats = residency.OrphanStats
	// Peers are the other ranks of a job.
	Peers = interface {
		others.Peers
		content.Peers
	}
	// Touches are what one client reports of its reads.
	Touches = sharedindex.Touches
	// Holds are what one client keeps in place.
	Holds = sharedindex.Holds
)

// RemoteTier is the word for other ranks' memory in statistics.
const RemoteTier = residency.RemoteTier

// Errors of the store. Test with errors.Is.
var (
	ErrMiss      = residency.ErrMiss      // not stored here: compute it
	ErrNoRoom    = residency.ErrNoRoom    // retry later or drop
	ErrTooLarge  = residency.ErrTooLarge  // permanent
	ErrCondition = residency.ErrCondition // of IfAbsent or IfPresent
	ErrBadEntry  = residency.ErrBadEntry  // caller's mistake
	ErrClosed    = residency.ErrClosed    // permanent
	ErrNoArena   = sharedindex.ErrNoArena // permanent
)
