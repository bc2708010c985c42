package content

import (
	"context"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

type info = block.Info

// Entrust keeps names for bytes that this rank has in segments, as another rank has them,
// and makes that durable; see dht.Local. The names have the put stamps that they have
// there, and are those of this rank from then on.
func (l *Ledger) Entrust(ctx context.Context, list []directory.Statement) (refused []int) {
	all := func() (every []int) {
		for i := range list {
			every = append(every, i)
		}
		return every
	}
	p := l.peers()
	if p == nil {
		return all()
	}
	ids := make([]residency.BlockID, len(list))
	for i := range list {
		ids[i] = list[i].Info.ID
	}
	spilled := make([]found, len(list))
	if l.state.Cold.Spilled() {
		spilled = l.state.Cold.Files.Catalogue().Own(ids)
	}
	newer, err := l.newer(list)
	if err != nil {
		return all()
	}
	var states []directory.Statement
	var upTo uint64 // of the changes of names that must be durable
	for start := 0; start < len(list); start += step {
		l.state.Mu.Lock()
		for i := start; i < min(len(list), start+step); i++ {
			ok, state := l.keepLocked(&list[i], &spilled[i], newer[i])
			if !ok {
				refused = append(refused, i)
			} else if b := l.state.Mu.Blocks[ids[i]]; b != nil {
				upTo = max(upTo, b.LinkSeq)
			} else {
				upTo = l.state.Mu.Writes.LinkSeq
			}
			if state != nil {
				states = append(states, *state)
			}
		}
		l.state.Mu.Unlock()
	}
	if len(refused) == len(list) {
		return refused
	}
	// Where a sync takes longer than ctx, the names are durable when they come again.
	if !l.isDurable(upTo) && l.sync(ctx) != nil {
		return all()
	}
	p.Publish(states...)
	return refused
}

// isDurable reports whether changes of names are durable up to one.
func (l *Ledger) isDurable(upTo uint64) bool {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	return upTo <= l.state.Mu.Writes.SyncedSeq
}

// newer reports for which names there is a record, or a withdrawal, that is newer than they
// are: one of them would be void when this rank begins anew.
func (l *Ledger) newer(list []directory.Statement) ([]bool, error) {
	c := l.state.Cold.Files.Catalogue()
	if c == nil {
		return make([]bool, len(list)), nil
	}
	names := make([]block.Name, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return c.Newer(names)
}

// keepLocked keeps one name, of which there is a newer record or not. What is to be stated
// of it besides is in the statement, nil for nothing.
func (l *Ledger) keepLocked(st *directory.Statement, spilled *found, newer bool) (ok bool, state *directory.Statement) {
	r := st.Name
	if r.Key == "" || r.Namespace == directory.Contents || r.Bound || st.Info.ID.IsProvisional() || l.state.Mu.Closed || l.invalid.InvalidLocked(&r) || l.clearedLocked(&r) {
		return false, nil
	}
	l.state.Mu.Names.Observe(r.Seq)
	b := l.state.Mu.Blocks[st.Info.ID]
	here := l.state.Mu.Names.Get(r.Namespace, r.Key)
	if newer && (here == nil || here.Block() == nil || residency.BlockOf(here) != b || here.Put() != r.Seq) {
		return false, nil
	}
	if here != nil && here.Block() != nil {
		switch was := residency.BlockOf(here); {
		case was == b && here.Put() == r.Seq && !here.Copied() && (keeps(b) || restsAt(b, spilled)):
			return true, nil // it was here before
		case here.Seq()+1 >= r.Seq && !(was == b && here.Put() == r.Seq):
			return false, nil
		case was != b:
			l.state.WithdrawLocked(here, here.Seq()+1)
		}
		if b = l.state.Mu.Blocks[st.Info.ID]; b == nil && spilled.Info.ID.IsZero() {
			return false, nil
		}
	} else if l.nameRoom.MakeRoomLocked(r.Namespace, r.Key) != nil {
		return false, nil
	}
	switch {
	case b != nil && (keeps(b) || restsAt(b, spilled)) && b.Info == st.Info:
		return residency.KeepNameLocked(l.state, r, b), nil
	case b == nil && spilled.Info == st.Info:
		err := l.state.Cold.Files.LinkAt(spilled.Segment, st.Info.ID, r)
		l.state.NoteLinkLocked(err)
		if err != nil {
			return false, nil
		}
		at := directory.Segment(spilled.Segment)
		return true, &directory.Statement{Name: r, Info: st.Info, Segment: &at, Version: l.state.TickLocked()}
	}
	return false, nil
}

// restsAt reports whether b is in memory and lies in a file of this rank that is spilled,
// where the catalogue has it.
func restsAt(b *residency.Block, spilled *found) bool {
	return b != nil && b.From != nil && b.Info == spilled.Info && b.From.Path == spilled.Segment.Path && b.InAny()
}
