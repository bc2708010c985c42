package campaign

import (
	"fmt"
	"path/filepath"
	"time"

	"cascadekv/lustre/segment/lease"
)

// Run is who owns the directory of an incarnation (docs/format.md §1.10).
type Run struct {
	Path    string     `json:"path"` // of the directory, relative to the campaign
	Rank    uint32     `json:"rank"`
	Owner   string     `json:"owner,omitempty"` // its incarnation, hex; empty when not known
	Life    lease.Life `json:"life,omitempty"`
	Host    string     `json:"host,omitempty"`
	Process uint64     `json:"process,omitempty"` // its id
	Renewed time.Time  `json:"renewed,omitzero"`
}

// runs lists who owns what, in the order of the directories.
func (o *Options) runs(l *listing) []Run {
	tokens := map[string][]lease.Token{} // by directory
	for _, it := range l.files {
		if it.kind == isToken {
			dir := filepath.Dir(it.path)
			tokens[dir] = append(tokens[dir], it.token)
		}
	}
	// The token that an owner renews lies in the directory of its own.
	type owner struct {
		number  uint64
		process lease.Process
	}
	renewed := map[owner]lease.Token{}
	for _, d := range l.dirs {
		for _, t := range tokens[d.path] {
			if t.Owner == d.id.Incarnation {
				renewed[owner{t.Owner, t.Process}] = t
			}
		}
	}
	runs := make([]Run, len(l.dirs))
	for i, d := range l.dirs {
		runs[i] = Run{Path: d.path, Rank: d.id.Rank}
		for _, t := range tokens[d.path] {
			if its, ok := renewed[owner{t.Owner, t.Process}]; ok {
				t = its
			}
			life := t.Life(o.Now())
			if runs[i].Owner != "" && life != lease.LifeAlive {
				continue
			}
			runs[i].Owner, runs[i].Life = fmt.Sprintf("%016x", t.Owner), life
			runs[i].Host, runs[i].Process, runs[i].Renewed = t.Process.Host, t.Process.ID, time.Unix(t.Renewed, 0)
		}
	}
	return runs
}
