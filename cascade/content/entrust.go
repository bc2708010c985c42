package content

import (
	"context"
	"slices"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

type info = block.Info

// Entrust keeps names for bytes that this rank has in segments, as another rank has them,
// and makes that durable; see dht.Local. The names have the put stamps that they have
// there, and are those of this rank from then on. A name that this rank has put later itself,
// for the same bytes and with the same end, stays what it is.
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
	offers, err := l.offers(list)
	if err != nil {
		return all()
	}
	var states []directory.Statement
	var upTo uint64 // of the changes of names that must be durable
	for start := 0; start < len(list); start += step {
		l.state.Mu.Lock()
		for i := start; i < min(len(list), start+step); i++ {
			ok, state := l.keepLocked(&offers[i])
			if !ok {
				refused = append(refused, i)
			} else if b := l.state.Mu.Blocks[list[i].Info.ID]; b != nil {
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
	// What the other rank gives up is found by this one's statements alone, whatever becomes
	// of this rank next.
	if slices.ContainsFunc(list, func(st directory.Statement) bool { return st.Version > 0 }) && !l.names.AwaitHomes(ctx) {
		return all()
	}
	return refused
}

// isDurable reports whether changes of names are durable up to one.
func (l *Ledger) isDurable(upTo uint64) bool {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	return upTo <= l.state.Mu.Writes.SyncedSeq
}

// offer is a name that this rank is to keep.
type offer struct {
	*directory.Statement
	seq     uint64 // the least of its record
	spilled found  // where the bytes lie in files that are spilled
	newer   bool   // there is a record, or a withdrawal, of the name that is newer than seq: its record would be void when this rank begins anew
	here    bool   // that is a record of this rank for the same bytes
}

// offers finds out what the catalogue knows of names that this rank is to keep.
func (l *Ledger) offers(list []directory.Statement) ([]offer, error) {
	offers, ids, names := make([]offer, len(list)), make([]residency.BlockID, len(list)), make([]block.Name, len(list))
	l.state.Mu.Lock()
	for i := range list {
		st := &list[i]
		seq := max(st.Name.Seq, st.Version)
		if n := l.state.Mu.Names.Get(st.Name.Namespace, st.Name.Key); n != nil && n.Block() != nil && n.Block().Info == st.Info {
			seq = max(seq, n.Seq()) // that is no reason to refuse it
		}
		offers[i] = offer{Statement: st, seq: seq}
		ids[i], names[i] = st.Info.ID, st.Name
		names[i].Seq = seq
	}
	l.state.Mu.Unlock()
	c := l.state.Cold.Files.Catalogue()
	if c == nil {
		return offers, nil
	}
	if l.state.Cold.Spilled() {
		for i, f := range c.Own(ids) {
			offers[i].spilled = f
		}
	}
	newer, err := c.Newer(names)
	for i, is := range newer {
		o := &offers[i]
		if o.newer = is; is && o.spilled.Info == o.Info {
			f := c.Peek(o.Name.Namespace, []string{o.Name.Key})[0]
			o.here = f.Info == o.Info && f.Segment.Path == o.spilled.Segment.Path && f.Name.Expires.Equal(o.Name.Expires) && f.Name.Seq > o.seq
		}
	}
	return offers, err
}

// keepLocked keeps one name. What is to be stated of it besides is in the statement, nil for
// nothing.
func (l *Ledger) keepLocked(o *offer) (ok bool, state *directory.Statement) {
	r := o.Name
	if r.Key == "" || r.Namespace == directory.Contents || r.Bound || o.Info.ID.IsProvisional() || l.state.Mu.Closed || l.names.InvalidLocked(&r) || l.clearedLocked(&r) {
		return false, nil
	}
	l.state.Mu.Names.Observe(o.seq)
	b, seq := l.state.Mu.Blocks[o.Info.ID], o.seq
	here := l.state.Mu.Names.Get(r.Namespace, r.Key)
	switch {
	case here == nil || here.Block() == nil:
		if o.newer {
			return o.here, nil
		}
		if l.nameRoom.MakeRoomLocked(r.Namespace, r.Key) != nil {
			return false, nil
		}
	case o.newer:
		return false, nil
	case residency.BlockOf(here) != b:
		if here.Put() >= r.Seq || here.Seq() >= seq {
			return false, nil
		}
		l.state.WithdrawLocked(here)
		if b = l.state.Mu.Blocks[o.Info.ID]; b == nil && o.spilled.Info.ID.IsZero() {
			return false, nil
		}
	case here.Put() > r.Seq && !here.Expires().Equal(r.Expires):
		return false, nil
	case o.hasBytes(b) && !o.movesTo(b) && here.Put() >= r.Seq && here.Seq() >= seq && !here.Copied():
		return true, nil // it was here before
	case here.Put() < r.Seq:
		seq = max(seq, here.Seq()+1)
	}
	if b == nil && o.spilled.Info == o.Info {
		b = l.takeLocked(o.Info)
	}
	switch {
	case o.hasBytes(b):
		return l.keepHereLocked(o, b, seq), nil
	case b == nil && o.spilled.Info == o.Info && l.state.Cold.Loads == 0: // while a file is loaded it may be found to have no name
		r.Seq = seq
		err := l.state.Cold.LinkAtLocked(o.spilled.Segment, o.Info.ID, r)
		l.state.NoteLinkLocked(err)
		if err != nil {
			return false, nil
		}
		at := directory.Segment(o.spilled.Segment)
		return true, &directory.Statement{Name: r, Info: o.Info, Segment: &at, Version: l.state.TickLocked()}
	}
	return false, nil
}

// takeLocked has the state know a block of this rank's files that was kept for names elsewhere alone, and is about to be given
// one here: else nobody would say where it is once its file is merged. nil: it is none.
func (l *Ledger) takeLocked(of info) (b *residency.Block) {
	if _, err := l.state.Cold.Files.Segment(of.ID); err != nil { // its file is spilled
		return nil
	}
	if b = l.state.FoundLocked(of); b != nil {
		l.state.Cold.AdoptLocked(b)
	}
	return b
}

// keepHereLocked keeps the name for b, which is in memory and of which this rank has the bytes in its
// files. If b was read from elsewhere it is a copy of what the spilled file has from then on:
// where it was read may be given up.
func (l *Ledger) keepHereLocked(o *offer, b *residency.Block, seq uint64) bool {
	was, moves := b.From, o.movesTo(b)
	if moves {
		at := directory.Segment(o.spilled.Segment)
		b.From = nil
		l.state.Cold.RestLocked(b, &at)
	}
	kept := residency.KeepNameLocked(l.state, o.Name, b, seq)
	if moves && b.From == nil { // the file has gone since the catalogue was asked
		b.From = was
		l.state.PlacementChangedLocked(b)
	}
	return kept
}

// hasBytes reports whether b is the block of o, and this rank has it in its files.
func (o *offer) hasBytes(b *residency.Block) bool {
	return b != nil && b.Info == o.Info && (keeps(b) || restsAt(b, &o.spilled) || o.movesTo(b))
}

// movesTo reports whether b is in memory, was read from elsewhere, or is not written, and lies
// in a spilled file of this rank.
func (o *offer) movesTo(b *residency.Block) bool {
	return !b.Cold && !b.Writing && b.InAny() && b.Info == o.spilled.Info && !restsAt(b, &o.spilled)
}

// restsAt reports whether b is in memory and lies in a file of this rank that is spilled,
// where the catalogue has it.
func restsAt(b *residency.Block, spilled *found) bool {
	return b != nil && b.From != nil && b.Info == spilled.Info && b.From.Path == spilled.Segment.Path && b.InAny()
}
