package cascade

import (
	"context"
	"errors"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
)

// KeyReport is where the block of a name is, as one rank knows, what keeps it there, and why
// the name was lost last. Its JSON is the answer of CASCADE.WHY, docs/protocol.md.
type KeyReport struct {
	State string `json:"state"` // of the name: one of the words below

	// Of the block, where this rank has it or knows of it:
	ID      string `json:"id,omitempty"`
	Bytes   int64  `json:"bytes"`
	Names   int    `json:"names"` // on this rank
	Dirty   bool   `json:"dirty"` // not yet in the cold tier
	Leased  bool   `json:"leased"`
	Readers int    `json:"readers"` // views and pins of it, and copies under way
	Leads   bool   `json:"leads"`   // a block after it in a chain is stored here

	Generated bool `json:"generated"` // it counts as of generated tokens: see Limits.StorePromptOnly

	Levels []LevelReport `json:"levels"`           // of this rank, fastest first
	Copies []CopyReport  `json:"copies,omitempty"` // elsewhere
	Miss   MissReport    `json:"miss"`
}

// States of a name.
const (
	NameReadable  = "readable"  // on this rank
	NameElsewhere = "elsewhere" // in the catalogue or on another rank
	NameEnded     = "ended"     // its time is over
	NameHidden    = "hidden"    // it is bound to one that is not there
	NameAbsent    = "absent"
)

// LevelReport is a block's place in one level.
type LevelReport struct {
	Name    string         `json:"name"`
	Policy  string         `json:"policy,omitempty"` // "": nothing has to leave
	Here    bool           `json:"here"`
	Segment *SegmentReport `json:"segment,omitempty"` // of this rank's files
	Spilled bool           `json:"spilled,omitempty"` // the catalogue alone knows of it

	// What the policy reports of the block, or remembers: see policy.Explanation.
	Remembered   bool    `json:"remembered,omitempty"` // it is not here
	Class        string  `json:"class,omitempty"`
	IdleSeconds  int64   `json:"idle_s"` // since the last request for it; -1: not known
	Worth        float64 `json:"worth,omitempty"`
	Hazard       float64 `json:"hazard,omitempty"`
	Holds        int     `json:"holds"`
	BeforeBlocks int64   `json:"before_blocks"`
	BeforeBytes  int64   `json:"before_bytes"`
	Estimated    bool    `json:"estimated,omitempty"` // the two before are
}

// SegmentReport is a place in the shared file system.
type SegmentReport struct {
	Path   string `json:"path"` // relative to the shared directory
	Offset int64  `json:"offset"`
}

// CopyReport is a copy elsewhere.
type CopyReport struct {
	Rank    *fabric.Rank   `json:"rank,omitempty"` // nil: the catalogue has it
	Memory  bool           `json:"memory"`
	Segment *SegmentReport `json:"segment,omitempty"`
}

// MissReport is why the name was lost last, or is.
type MissReport struct {
	// Reason is a word of losslog.Reason, or NameEnded or NameHidden; "never": it was not
	// stored here since this process began; "unknown": it was not lately; "": nothing was lost.
	Reason string       `json:"reason,omitempty"`
	Level  string       `json:"level,omitempty"`  // where its last copy was lost
	AgoMS  int64        `json:"ago_ms,omitempty"` // 0: not known
	Rank   *fabric.Rank `json:"rank,omitempty"`   // of "rank_dead"
	KeptMS int64        `json:"kept_ms"`          // losses are remembered for this long at least; 0: all since this process began
}

// Explain reports of a name what this rank knows of it. It is no access, and changes nothing.
// It may read from a local disk, and asks other ranks until ctx ends.
func Explain(ctx context.Context, s *Store, ns, key string) KeyReport {
	var r KeyReport
	loss, id := s.here.explain(&r, ns, key)
	copies := copiesOf(ctx, s, ns, key)
	if r.State == NameAbsent && len(copies) > 0 {
		r.State, id = NameElsewhere, copies[0].Info.ID
		r.ID, r.Bytes = id.String(), copies[0].Info.Size
	}
	if own := s.state.Cold.Own(id)[0]; own != nil {
		cold := &r.Levels[len(r.Levels)-1]
		cold.Segment, cold.Spilled = &SegmentReport{own.Path, own.Offset}, !cold.Here
	}
	for _, c := range copies {
		one := CopyReport{Memory: c.Memory != nil}
		if c.Segment != nil {
			one.Segment = &SegmentReport{c.Segment.Path, c.Segment.Offset}
		}
		if c.Version > 0 {
			one.Rank = &c.Owner
		} else if own := r.Levels[len(r.Levels)-1].Segment; own != nil && one.Segment != nil && *own == *one.Segment {
			continue // this rank's own
		}
		r.Copies = append(r.Copies, one)
	}
	r.Miss = missOf(r.State, loss, fateOf(s, ns, key))
	return r
}

// explain reports what this rank's memory knows of a name.
func (h Here) explain(r *KeyReport, ns, key string) (loss residency.Loss, id BlockID) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	n, b := residency.VisibleLocked(h.state, ns, key), (*residency.Block)(nil)
	switch r.State = NameReadable; {
	case n != nil:
	case h.state.Mu.Names.Get(ns, key) == nil || h.state.Mu.Names.Get(ns, key).Block() == nil:
		r.State = NameAbsent
	default:
		n = h.state.Mu.Names.Get(ns, key)
		if r.State = NameHidden; n.Ended(h.state.Now) {
			r.State = NameEnded
		}
	}
	if n != nil {
		b = residency.BlockOf(n)
		id = b.Info.ID
		r.ID, r.Bytes, r.Names = id.String(), b.Info.Size, len(b.Names())
		r.Dirty, r.Leased, r.Readers, r.Leads = b.Dirty(), b.Leased(), b.Busy, b.Leads()
		r.Generated = b.Generated
	}
	for _, m := range h.state.Levels {
		r.Levels = append(r.Levels, explainLevelLocked(m, b, block.Fingerprint(ns, key)))
	}
	return h.state.Count.LastLossLocked(ns, key), id
}

// explainLevelLocked reports the place of b, nil for none, in a level.
func explainLevelLocked(m *residency.Level, b *residency.Block, print uint64) LevelReport {
	l := LevelReport{Name: m.Stats.Name, Policy: m.Stats.Policy, IdleSeconds: -1}
	switch {
	case b == nil:
	case m.Memory != nil:
		l.Here = b.In(m.Index)
	case b.Cold:
		l.Here = true
		if at, err := m.Files.Segment(b.Info.ID); err == nil {
			l.Segment = &SegmentReport{at.Path, at.Offset}
		}
	}
	e, there, remembered := m.ExplainLocked(b, print)
	if !there && !remembered {
		return l
	}
	l.Remembered, l.Class, l.Worth, l.Hazard, l.Holds = remembered, e.Class, e.Worth, e.Hazard, e.Holds
	l.BeforeBlocks, l.BeforeBytes, l.Estimated = e.Blocks, e.Bytes, e.Sampled
	if e.Idle >= 0 {
		l.IdleSeconds = int64(e.Idle / time.Second)
	}
	return l
}

// copiesOf returns what the catalogue and the homes of a name have of it.
func copiesOf(ctx context.Context, s *Store, ns, key string) (copies []directory.Statement) {
	if !block.IsName(ns, key) {
		return s.others.LocatedOne(ctx, ns, key)
	}
	if s.others.HasParts.Load() {
		copies = s.others.CataloguedUnasked(ns, []string{key})[0]
	}
	if s.others.Peers != nil {
		copies = append(copies, s.others.Peers.Locate(ctx, ns, []string{key})[0]...)
	}
	return copies
}

// fateOf asks this rank, as a home of a name, what became of it.
func fateOf(s *Store, ns, key string) directory.Fate {
	if home, ok := s.others.Peers.(interface {
		Fate(ns, key string) directory.Fate
	}); ok {
		return home.Fate(ns, key)
	}
	return directory.Fate{}
}

// missOf is why a name is not there, or was not lately.
func missOf(state string, loss residency.Loss, fate directory.Fate) MissReport {
	m := MissReport{Reason: loss.Reason.String(), Level: loss.Level, AgoMS: loss.Ago.Milliseconds()}
	if !loss.All {
		m.KeptMS = max(loss.Since.Milliseconds(), 1)
	}
	// Others know more than that the name was withdrawn, or did not come from there.
	fromOthers := loss.Reason == 0 || loss.Reason == losslog.Replaced || loss.Level == "" && (loss.Reason == losslog.Gone || loss.Reason >= losslog.Late)
	absent := state == NameAbsent
	switch {
	case state == NameEnded || state == NameHidden:
		m.Reason, m.Level, m.AgoMS = state, "", 0
	case absent && fromOthers && fate.Deleted:
		m.Reason, m.AgoMS = losslog.Deleted.String(), 0
	case absent && fromOthers && fate.Dead:
		m.Reason, m.AgoMS, m.Rank = losslog.RankDead.String(), 0, &fate.Owner
	case loss.Reason > 0 || !absent:
	case loss.All:
		m.Reason = "never"
	default:
		m.Reason = "unknown"
	}
	return m
}

// Refused remembers that a put of a name found no room, if that is what err is; for those who
// reserve it before they know the name.
func Refused(s *Store, ns, key string, err error) {
	if err != nil {
		s.state.Mu.Lock()
		defer s.state.Mu.Unlock()
		refusedLocked(s, ns, key, err)
	}
}

func refusedLocked(s *Store, ns, key string, err error) {
	if errors.Is(err, ErrNoRoom) || errors.Is(err, ErrTooLarge) {
		s.state.Count.LostNameLocked(losslog.Refused, nil, ns, key)
	}
}
