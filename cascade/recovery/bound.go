package recovery

import (
	"log/slog"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
)

// trimLocked leaves out of what was found, the oldest first, what the bound on
// names has no room for: it keeps the youngest names, with all that come before
// them in their chains.
func (rc *Recoverer) trimLocked(live []claim) []claim {
	limit := rc.state.Limits.Load().NameBytes
	cost := func(c *claim) int64 { return names.Cost(c.name.Key, c.name.Parent) }
	total := int64(0)
	for i := range live {
		total += cost(&live[i])
	}
	if limit <= 0 || total <= limit {
		return live
	}
	at := make(map[residency.NameID]int, len(live))
	for i := range live {
		at[residency.NameID{NS: live[i].name.Namespace, Key: live[i].name.Key}] = i
	}
	keep := make([]bool, len(live))
	total = 0
	for i := len(live) - 1; i >= 0 && total < limit; i-- {
		for j, ok := i, true; ok && !keep[j]; j, ok = at[residency.NameID{NS: live[j].name.Namespace, Key: live[j].name.Parent}] {
			keep[j] = true
			total += cost(&live[j])
		}
	}
	kept := make([]claim, 0, len(live))
	for i, c := range live {
		if keep[i] {
			kept = append(kept, c)
		}
	}
	rc.state.Count.Stats.Forgotten += uint64(len(live) - len(kept))
	rc.state.LogLocked(slog.LevelWarn, "not all names that were found are taken in: the heap for names is full; raise names_bytes to keep more",
		"found", len(live), "kept", len(kept), "names_bytes", limit)
	return kept
}
