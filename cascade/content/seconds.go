package content

import (
	"context"
	"slices"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// Two ranks that wrote the same bytes, not knowing of each other, learn of it from the homes
// of the id. All but the one of the lowest number give theirs up: that one keeps the
// names, recorded just after they were recorded here, and here they are withdrawn between the
// two. So no record of this rank stands for anything when the name is deleted there.

const (
	// movedBy is how much later a name is recorded where it goes than where it was. Records of
	// a name by different puts are further apart than that.
	movedBy = 2

	// maxSeconds bounds the second copies that are remembered.
	maxSeconds = 1 << 18
)

// SecondLocked records that a rank of a lower number keeps the bytes of an id too.
func (l *Ledger) SecondLocked(key string) {
	l.state.Mu.AssertHeld()
	if id, ok := directory.ContentID(key); ok && len(l.guarded.seconds) < maxSeconds {
		l.guarded.seconds[id] = struct{}{}
	}
}

// Seconds returns blocks that another rank keeps too and that this store does not know to be
// in its files.
func (l *Ledger) Seconds() (ids []residency.BlockID) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for id := range l.guarded.seconds {
		if b := l.state.Mu.Blocks[id]; b == nil || !b.Cold {
			ids = append(ids, id)
		}
	}
	return ids
}

// ForgetSeconds forgets such blocks, which are in no file that the catalogue alone knows either.
func (l *Ledger) ForgetSeconds(ids []residency.BlockID) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for _, id := range ids {
		if b := l.state.Mu.Blocks[id]; b == nil || !b.Cold {
			delete(l.guarded.seconds, id)
		}
	}
}

// GiveUpSeconds takes bytes out of this rank's segments that a rank of a lower number keeps too,
// and makes durable that their names are not here any more. It calls peers, and makes two
// messages for 128 blocks and one for 256 names.
func (l *Ledger) GiveUpSeconds(ctx context.Context) {
	p := l.peers()
	if p == nil {
		return
	}
	given := 0
	for ids := range slices.Chunk(l.takeSeconds(), step) {
		given += l.give(ctx, p, ids)
	}
	if given == 0 {
		return
	}
	l.state.Log.Info("bytes that other ranks keep too are given up", "blocks", given)
	if err := l.durable.SyncInTurn(ctx); err != nil {
		l.state.Log.Warn("what was given up may be here again after a crash, until it is given up again", "blocks", given, "err", err)
	}
}

// takeSeconds returns what may be given up, and no longer remembers it.
func (l *Ledger) takeSeconds() (ids []residency.BlockID) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for id := range l.guarded.seconds {
		if b := l.state.Mu.Blocks[id]; b != nil && b.Cold {
			delete(l.guarded.seconds, id)
			ids = append(ids, id)
		}
	}
	return ids
}

// give gives up some blocks, and returns how many. What was not, but might be later, is
// remembered.
func (l *Ledger) give(ctx context.Context, p Peers, ids []residency.BlockID) (given int) {
	mine, blocks := l.givable(ids)
	found := p.Claim(ctx, mine) // which states once more what these are
	l.forgetGone(ctx, p, mine, found)
	keeper := map[fabric.Rank][]*candidate{}
	var later []residency.BlockID
	for i, copies := range found {
		if copies == nil { // its home did not answer
			later = append(later, mine[i].Info.ID)
		}
		if c := lowest(copies, p.Self(), &mine[i]); c != nil {
			keeper[c.Owner] = append(keeper[c.Owner], &candidate{block: blocks[i], info: c.Info, at: c.Segment})
		}
	}
	l.entrustAll(ctx, p, keeper)
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for _, group := range keeper {
		for _, c := range group {
			if c.accepted && l.giveLocked(c) {
				given++
			} else {
				later = append(later, c.info.ID)
			}
		}
	}
	for _, id := range later {
		l.guarded.seconds[id] = struct{}{}
	}
	l.state.WakeWaitersLocked()
	return given
}

// lowest is the copy in segments of the lowest rank below this one, nil for none.
func lowest(copies []directory.Statement, self fabric.Rank, mine *directory.Statement) (best *directory.Statement) {
	for i := range copies {
		if c := &copies[i]; c.Segment != nil && c.Owner < self && c.Info == mine.Info && (best == nil || c.Owner < best.Owner) {
			best = c
		}
	}
	return best
}

// givable returns those of some blocks that may be given up, and what is stated of them.
func (l *Ledger) givable(ids []residency.BlockID) (mine []directory.Statement, blocks []*residency.Block) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for _, id := range ids {
		b := l.state.Mu.Blocks[id]
		if b == nil || !keeps(b) || bound(b) {
			continue
		}
		if st := l.stateLocked(id); st.Segment != nil {
			mine, blocks = append(mine, st), append(blocks, b)
		}
	}
	return mine, blocks
}

// giveLocked takes one block, whose names another rank has as they are, out of this rank's
// segments, and reports whether it did.
func (l *Ledger) giveLocked(c *candidate) bool {
	b := c.block
	used := b.Writing || b.Loading || !b.InAny() && (b.Busy > 0 || b.Leased())
	if l.state.Mu.Blocks[b.Info.ID] != b || b.Info != c.info || !keeps(b) || used || len(b.Names()) == 0 || !c.reportedLocked() {
		return false
	}
	names := slices.Clone(b.Names())
	err := l.withdrawLocked(b)
	if err == nil {
		err = l.state.Cold.Files.Evict(b.Info.ID)
	}
	l.state.NoteColdLocked(err)
	if err == nil {
		b.From, b.Recorded = c.at, false
		l.state.Cold.LeaveLocked(b, false)
		l.state.Count.Stats.Relied++
	}
	for _, n := range names { // as the other rank has them, or else as they are recorded here again
		if err == nil {
			l.state.Mu.Names.SetCopied(n)
		}
		l.state.Mu.Names.Raise(n, n.Seq()+movedBy)
	}
	l.state.ApplyLocked()
	if err == nil && !b.InAny() {
		l.state.VanishLocked(b)
	}
	return err == nil
}

// withdrawLocked withdraws the records of b's names in this rank's segments.
func (l *Ledger) withdrawLocked(b *residency.Block) error {
	for _, n := range b.Names() {
		withdrawn := n.Record()
		withdrawn.Seq++
		err := l.state.Cold.Files.Unlink(b.Info.ID, withdrawn)
		l.state.NoteLinkLocked(err)
		if err != nil {
			return err
		}
	}
	b.LinkSeq = l.state.Mu.Writes.LinkSeq
	return nil
}
