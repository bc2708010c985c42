package content

import (
	"context"
	"maps"
	"slices"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
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
	for start := 0; start < len(list); start += step {
		l.state.Mu.Lock()
		for i := start; i < min(len(list), start+step); i++ {
			ok, state := l.keepLocked(&list[i], &spilled[i], newer[i])
			if !ok {
				refused = append(refused, i)
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
	if l.sync(ctx) != nil {
		return all()
	}
	p.Publish(states...)
	return refused
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

// maxSecond bounds the second copies that are remembered: homes report them again.
const maxSecond = 1 << 16

// SecondLocked notes that another rank of a lower number keeps the bytes of an id too.
func (l *Ledger) SecondLocked(key string) {
	if id, ok := directory.ContentID(key); ok && len(l.guarded.second) < maxSecond {
		l.guarded.second[id] = true
	}
}

// GiveUpSeconds takes bytes out of this rank's segments that another rank keeps too, and
// entrusts that one with their names. Names go to ranks of lower numbers only, so that
// two do not give up the same bytes for each other's sake.
func (l *Ledger) GiveUpSeconds(ctx context.Context) {
	p := l.peers()
	if p == nil {
		return
	}
	for ids := range slices.Chunk(l.takeSeconds(), step) {
		l.giveUp(ctx, p, ids)
	}
}

func (l *Ledger) takeSeconds() []residency.BlockID {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	ids := slices.Collect(maps.Keys(l.guarded.second))
	clear(l.guarded.second)
	return ids
}

func (l *Ledger) giveUp(ctx context.Context, p Peers, ids []residency.BlockID) {
	var mine []directory.Statement
	var blocks []*residency.Block
	l.state.Mu.Lock()
	for _, id := range ids {
		if b := l.state.Mu.Blocks[id]; b != nil && keeps(b) && !bound(b) {
			if st := l.stateLocked(id); st.Segment != nil {
				mine, blocks = append(mine, st), append(blocks, b)
			}
		}
	}
	l.state.Mu.Unlock()
	keeper := map[fabric.Rank][]*candidate{}
	for i, copies := range p.Claim(ctx, mine) {
		var lowest *directory.Statement
		for j := range copies {
			if c := &copies[j]; c.Segment != nil && c.Owner < p.Self() && c.Info == mine[i].Info && (lowest == nil || c.Owner < lowest.Owner) {
				lowest = c
			}
		}
		if lowest != nil {
			keeper[lowest.Owner] = append(keeper[lowest.Owner], &candidate{block: blocks[i], info: lowest.Info, at: lowest.Segment})
		}
	}
	l.entrustAll(ctx, p, keeper)
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for _, group := range keeper {
		for _, c := range group {
			if !c.accepted || !l.giveUpLocked(c) {
				l.SecondLocked(directory.ContentKey(c.info.ID)) // to be tried again
			}
		}
	}
	l.state.WakeWaitersLocked()
}

// giveUpLocked takes one block out of this rank's segments, and reports whether it did.
func (l *Ledger) giveUpLocked(c *candidate) bool {
	b := c.block
	if l.state.Mu.Blocks[b.Info.ID] != b || !keeps(b) || b.Writing || b.Loading || !b.InAny() && (b.Busy > 0 || b.Leased()) || !c.reportedLocked() {
		return false
	}
	if err := l.state.Cold.Files.Evict(b.Info.ID); err != nil {
		l.state.NoteColdLocked(err)
		return false
	}
	l.state.Cold.LeaveLocked(b, false)
	for _, n := range b.Names() {
		l.state.Mu.Names.SetCopied(n)
	}
	b.From = c.at
	l.state.Count.Stats.Relied++
	if l.state.PlacementChangedLocked(b); !b.InAny() {
		l.state.VanishLocked(b)
	}
	return true
}
