package main

import (
	"fmt"
	"strings"

	"cascadekv/cascade"
	"cascadekv/internal/cli"
	"cascadekv/internal/preflight"
	"cascadekv/tiers"
)

// troubles are warnings of what keeps a tier from its work at the moment.
func troubles(t cascade.TierStats) (all []check) {
	h := t.Health
	if h == nil {
		return nil
	}
	if h.Hanging > 0 || h.Files > 0 || h.Writes {
		all = append(all, preflight.Warning("tier "+t.Name, "ask the administrators of the file system for its servers; the rank tries again by itself",
			"%d operations hang, %d files are left alone, writes are refused: %v", h.Hanging, h.Files, h.Writes))
	}
	if h.ReadOnly {
		all = append(all, preflight.Warning("tier "+t.Name, "free some, raise the quota, or remove what earlier jobs left (cascade segments); the rank tries again by itself",
			"it is read-only: no space or quota is left in its file system; what is there is served"))
	}
	return all
}

// checkTier is the doctor's check of a tier of a running rank.
func checkTier(t cascade.TierStats) []check {
	checks := troubles(t)
	if t.Errors > 0 {
		checks = append(checks, preflight.Warning("tier "+t.Name, "look for its errors in the rank's log", "%d operations failed", t.Errors))
	}
	if h := t.Health; h != nil {
		r := h.Reads
		if r.Corrupt > 0 {
			checks = append(checks, preflight.Warning("tier "+t.Name, "run cascade fsck when the job is over, and inform the administrators of the file system",
				"%d reads found other bytes than were written; the blocks count as missing", r.Corrupt))
		}
		if r.Gone+r.Unanswered+r.Failed > 0 || h.Poisoned > 0 {
			checks = append(checks, preflight.Warning("tier "+t.Name, "nothing is lost but time; should the figures grow, ask the administrators of the file system",
				"reads that failed: %d of what is gone, %d not answered, %d with an error; files given up after a failed write: %d",
				r.Gone, r.Unanswered, r.Failed, h.Poisoned))
		}
	}
	if s := t.Striping; s != nil {
		checks = append(checks, checkStriping(s))
	}
	return checks
}

func checkStriping(s *tiers.Striping) check {
	why := strings.Join(s.Differences, "; ")
	if s.Error != "" {
		why = s.Error
	}
	if !s.AsAsked() {
		return preflight.Warning("striping", "docs/lustre.md, section 3, describes what each means; cascade lustre plan --try asks the file system",
			"asked for %s, granted %q: %s", s.Asked, s.Granted, why)
	}
	return preflight.Okay("striping", "segments have %s (asked for %s)", s.Granted, s.Asked)
}

// mergedLine describes what merges of a tier came to.
func mergedLine(name string, m *tiers.Merged) string {
	freed := "freed " + cli.Human(m.Freed())
	if m.Freed() < 0 {
		freed = "freed nothing yet"
	}
	return fmt.Sprintf("%s merged %d segments: %d blocks (%s) were moved, %s", name, m.Segments, m.Blocks, cli.Human(int64(m.Bytes)), freed)
}
