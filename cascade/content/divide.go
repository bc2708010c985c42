package content

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/tiers"
)

type found = tiers.Found

const (
	// patience is how long a block waits for the rank that was first to claim its
	// bytes; that one may not need to write them for long.
	patience = time.Second

	// askEvery is how long such a block is left alone between two questions.
	askEvery = 50 * time.Millisecond
)

// Division is what becomes of blocks that were to be written.
type Division struct {
	Ours   []*residency.View // this rank writes them
	Relied []*residency.View // another rank keeps the bytes, and was entrusted with the names
	Wait   []*residency.View // another rank is about to write them
}

// Divide finds out which of some dirty blocks, which are pinned and have ids, this rank
// is to write. patient: one may wait for another rank for as long as that takes,
// else for a second. It takes as long as the peers, and calls them without the mutex.
func (l *Ledger) Divide(ctx context.Context, views []*residency.View, patient bool) (d Division) {
	p := l.peers()
	if p == nil {
		d.Ours = views
		return d
	}
	views, claims := l.claim(views, &d)
	keeper := map[fabric.Rank][]*candidate{}
	found := p.Claim(ctx, claims)
	l.forgetGone(ctx, p, claims, found)
	for i, copies := range found {
		c := &candidate{view: views[i], block: views[i].Block(), info: claims[i].Info}
		switch by := first(copies, p.Self(), &claims[i]); {
		case by == nil || by.Owner == p.Self():
			d.Ours = append(d.Ours, c.view)
		case by.Segment == nil:
			d.Wait = append(d.Wait, c.view)
		default:
			c.at = by.Segment
			keeper[by.Owner] = append(keeper[by.Owner], c)
		}
	}
	l.entrustAll(ctx, p, keeper)
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for _, group := range keeper {
		for _, c := range group {
			if c.accepted && l.becomeCopyLocked(c) {
				d.Relied = append(d.Relied, c.view)
			} else {
				d.Wait = append(d.Wait, c.view)
			}
		}
	}
	l.patientLocked(&d, patient)
	return d
}

// claim makes claims for what other ranks may have too. The rest is this rank's to write.
func (l *Ledger) claim(views []*residency.View, d *Division) (shared []*residency.View, claims []directory.Statement) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	for _, v := range views {
		b := v.Block()
		if b.Info.ID.IsProvisional() || b.Info.Size < Least || len(b.Names()) == 0 || !b.Dirty() || bound(b) {
			d.Ours = append(d.Ours, v)
			continue
		}
		b.Stated = residency.StatedClaim
		if st := l.stateLocked(b.Info.ID); st.Has() {
			shared, claims = append(shared, v), append(claims, st)
		} else {
			d.Ours = append(d.Ours, v)
		}
	}
	return shared, claims
}

// maxNames bounds the names of a block that another rank is entrusted with.
const maxNames = 64

// bound reports whether the names of b stay with this rank: one is bound to its parent, or
// they are too many for a message.
func bound(b *residency.Block) bool {
	if len(b.Names()) > maxNames {
		return true
	}
	for _, n := range b.Names() {
		if n.Bound() {
			return true
		}
	}
	return false
}

// lookDeadline bounds a look whether files of keepers are there.
const lookDeadline = 5 * time.Second

// forgetGone takes segments that are gone, and places that this rank found damaged, out of
// what was found and out of what homes know. The owner of a segment that is gone may have
// merged it, and be about to state where the bytes are.
func (l *Ledger) forgetGone(ctx context.Context, p Peers, claims []directory.Statement, found [][]directory.Statement) {
	paths := map[string]bool{}
	each := func(fn func(c, claim *directory.Statement)) {
		for i, copies := range found {
			for j := range copies {
				if c := &copies[j]; c.Segment != nil && c.Owner != p.Self() {
					fn(c, &claims[i])
				}
			}
		}
	}
	each(func(c, _ *directory.Statement) { paths[c.Segment.Path] = true })
	if len(paths) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookDeadline)
	defer cancel()
	gone, err := l.state.Cold.Files.Gone(ctx, slices.Collect(maps.Keys(paths))...)
	if err != nil { // what nobody knows to be gone is there
		gone = nil
	}
	each(func(c, claim *directory.Statement) {
		if slices.Contains(gone, c.Segment.Path) || l.state.Cold.Damaged.Has(c.Segment.Path, c.Segment.Offset) {
			c.Segment, c.Name = nil, claim.Name // homes leave the key out
			p.Invalidate(*c)
		}
	})
}

// first is the copy of the bytes that counts: the first in segments, or else the first claim.
func first(copies []directory.Statement, self fabric.Rank, claim *directory.Statement) *directory.Statement {
	for i := range copies {
		if c := &copies[i]; c.Info == claim.Info && (c.Owner != self || c.Segment == nil) {
			return c
		}
	}
	return nil
}

// candidate is a block of which another rank is to keep the bytes.
type candidate struct {
	block    *residency.Block
	view     *residency.View // of a block that is to be written, nil of one that is
	info     info
	at       *directory.Segment
	names    []directory.Statement // as they were sent
	accepted bool                  // it keeps all of them
}

// entrustAll entrusts each keeper with the names of its candidates.
func (l *Ledger) entrustAll(ctx context.Context, p Peers, keeper map[fabric.Rank][]*candidate) {
	var wait sync.WaitGroup
	for owner, group := range keeper {
		wait.Go(func() { l.entrustOne(ctx, p, owner, group) })
	}
	wait.Wait()
}

func (l *Ledger) entrustOne(ctx context.Context, p Peers, owner fabric.Rank, group []*candidate) {
	var list []directory.Statement
	var whose []*candidate
	l.state.Mu.Lock()
	for _, c := range group {
		for _, n := range c.block.Names() {
			st := directory.Statement{Name: n.Record(), Info: c.info}
			st.Name.Seq = n.Put()
			switch {
			case c.view == nil:
				st.Version = n.Seq() + movedBy
			case n.Seq() > n.Put(): // what was recorded as of the put is withdrawn somewhere: see names.Graph.Reclaim
				st.Version = n.Seq()
			}
			c.names = append(c.names, st)
			list, whose = append(list, st), append(whose, c)
		}
		c.accepted = len(c.names) > 0
	}
	l.state.Mu.Unlock()
	refused, err := p.Entrust(ctx, owner, list)
	for _, c := range group {
		c.accepted = c.accepted && err == nil
	}
	for _, i := range refused {
		whose[i].accepted = false
	}
}

// becomeCopyLocked makes what is in memory of a candidate a copy of what another rank keeps, if
// it has no other names by now. The names are recorded there and not here: what this rank's files have of older
// puts of them is withdrawn, for homes take this rank's own word for what it has.
func (l *Ledger) becomeCopyLocked(c *candidate) bool {
	b := c.block
	if l.state.Mu.Blocks[b.Info.ID] != b || b.Info != c.info || b.HasLowerCopy() || !b.InAny() || len(b.Names()) == 0 || !c.reportedLocked() {
		return false
	}
	for _, n := range b.Names() {
		l.state.Mu.Names.SetCopied(n)
		l.state.Watch.InvalidateLocked(residency.NameID{NS: n.Namespace(), Key: n.Key()}, n.Put())
	}
	b.From = c.at
	l.state.PlacementChangedLocked(b)
	l.state.Count.Stats.Relied++
	l.state.WakeWaitersLocked()
	return true
}

// reportedLocked reports whether all names of the block, as they are, were sent to the other rank.
func (c *candidate) reportedLocked() bool {
	for _, n := range c.block.Names() {
		known := false
		for i := range c.names {
			sent := &c.names[i].Name
			same := c.view != nil || c.names[i].Version == n.Seq()+movedBy
			known = known || same && sent.Seq == n.Put() && sent.Key == n.Key() && sent.Namespace == n.Namespace() && sent.Expires.Equal(n.Expires())
		}
		if !known || n.Bound() {
			return false
		}
	}
	return true
}

// patientLocked moves what has waited for too long to what this rank writes.
func (l *Ledger) patientLocked(d *Division, patient bool) {
	now := l.state.Now()
	waiting := d.Wait
	d.Wait = nil
	for _, v := range waiting {
		w, known := l.guarded.waits[v.Block().Info.ID]
		if !known {
			w.since = now
		}
		if !patient && now.Sub(w.since) >= patience {
			d.Ours = append(d.Ours, v)
			continue
		}
		w.until = now.Add(askEvery)
		l.guarded.waits[v.Block().Info.ID] = w
		d.Wait = append(d.Wait, v)
	}
	for _, done := range [][]*residency.View{d.Ours, d.Relied} {
		for _, v := range done {
			delete(l.guarded.waits, v.Block().Info.ID)
		}
	}
}

// UnclaimLocked takes back the claim of a block that is still dirty, so that no other rank
// waits for this one.
func (l *Ledger) UnclaimLocked(b *residency.Block) {
	if b.Stated == residency.StatedClaim && b.Dirty() {
		b.Stated = residency.Unstated
		l.MovedLocked(b)
	}
}

// WaitsLocked reports whether a block waits for another rank, and is to be left alone
// for a moment.
func (l *Ledger) WaitsLocked(b *residency.Block) bool {
	w, waits := l.guarded.waits[b.Info.ID]
	return waits && l.state.Now().Before(w.until)
}

// SweepLocked forgets what is known of blocks that do not wait any more, and of what was
// cleared a while ago.
func (l *Ledger) SweepLocked() {
	l.guarded.cleared = slices.DeleteFunc(l.guarded.cleared, func(c clearing) bool { return l.state.Now().After(c.until) })
	for id, w := range l.guarded.waits {
		b := l.state.Mu.Blocks[id]
		if b == nil || !b.Dirty() || l.state.Now().Sub(w.until) > time.Minute {
			delete(l.guarded.waits, id)
		}
	}
}
