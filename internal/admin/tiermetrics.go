package admin

import (
	"strings"

	"cascadekv/cascade"
	"cascadekv/tiers"
)

// Figures of tiers that lie on a file system.
var (
	mBrokenFiles   = newMetric("tier_broken_files", "Files that a tier leaves alone for a while, for they do not answer.", gauge, "tier")
	mBrokenWrites  = newMetric("tier_writes_broken", "1 while a tier takes no blocks because writes are not answered.", gauge, "tier")
	mBreaks        = newMetric("tier_breaks_total", "Times that files, or all writes, began to be left alone.", counter, "tier")
	mReadOnly      = newMetric("tier_read_only", "1 while a tier takes no blocks because there is no space or quota left.", gauge, "tier")
	mPoisoned      = newMetric("tier_poisoned_total", "Files that were given up after a write or fsync that failed.", counter, "tier")
	mReadErrors    = newMetric("tier_read_errors_total", "Reads of a tier that failed, by kind: corrupt, gone, unanswered, failed.", counter, "tier", "kind")
	mMerges        = newMetric("tier_merges_total", "Merges of a tier's files that did something.", counter, "tier")
	mMergeSegments = newMetric("tier_merge_segments_total", "Files that merges rewrote, and that are unlinked then.", counter, "tier")
	mMergeBlocks   = newMetric("tier_merge_blocks_total", "Blocks that merges moved.", counter, "tier")
	mMergeBytes    = newMetric("tier_merge_bytes_total", "Bytes of these.", counter, "tier")
	mMergeWritten  = newMetric("tier_merge_written_bytes_total", "Bytes of the files that merges made.", counter, "tier")
	mMergeRemoved  = newMetric("tier_merge_removed_bytes_total", "Bytes of the files that merges rewrote; less what was written, this is what they freed.", counter, "tier")
	mStriping      = newMetric("tier_striping_info", "1; the labels are the layout that was asked for and what the newest file was granted, as options of lfs setstripe.", gauge, "tier", "asked", "granted")
	mAsAsked       = newMetric("tier_striping_as_asked", "1 if the newest file is laid out as it was asked for.", gauge, "tier")
)

// collectFiles sends what a tier on a file system has besides.
func collectFiles(t cascade.TierStats, send func(metric, float64, ...string)) {
	if h := t.Health; h != nil {
		collectHealth(t.Name, h, send)
	}
	if m := t.Merged; m != nil {
		send(mMerges, float64(m.Merges), t.Name)
		send(mMergeSegments, float64(m.Segments), t.Name)
		send(mMergeBlocks, float64(m.Blocks), t.Name)
		send(mMergeBytes, float64(m.Bytes), t.Name)
		send(mMergeWritten, float64(m.Written), t.Name)
		send(mMergeRemoved, float64(m.Removed), t.Name)
	}
	if s := t.Striping; s != nil {
		send(mStriping, 1, t.Name, strings.ToValidUTF8(s.Asked, "?"), strings.ToValidUTF8(s.Granted, "?"))
		send(mAsAsked, oneIf(s.AsAsked()), t.Name)
	}
}

func collectHealth(name string, h *tiers.Health, send func(metric, float64, ...string)) {
	send(mHanging, float64(h.Hanging), name)
	send(mRefusals, float64(h.Refused), name)
	send(mBrokenFiles, float64(h.Files), name)
	send(mBrokenWrites, oneIf(h.Writes), name)
	send(mBreaks, float64(h.Breaks), name)
	send(mReadOnly, oneIf(h.ReadOnly), name)
	send(mPoisoned, float64(h.Poisoned), name)
	send(mReadErrors, float64(h.Reads.Corrupt), name, "corrupt")
	send(mReadErrors, float64(h.Reads.Gone), name, "gone")
	send(mReadErrors, float64(h.Reads.Unanswered), name, "unanswered")
	send(mReadErrors, float64(h.Reads.Failed), name, "failed")
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
