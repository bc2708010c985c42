package coldspace

import (
	"context"
	"errors"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// What this rank has in files that are complete is left to the catalogue, so that it
// takes no memory: the files are spilled. They come back, a file at a time, when they are
// worth merging, and when the budget requires that blocks leave, the oldest first.

// spillShare is the most of a file's blocks, as one part in so many, that may be in
// memory: a copy there costs more once the file is spilled.
const spillShare = 2

// SpillAll spills what may be spilled. Changes of names from before the first file is
// spilled are made durable before that: the catalogue knows what is durable.
func (cs *Space) SpillAll(ctx context.Context) {
	if cs.others.Catalogue == nil || cs.others.Catalogue.Err() != nil {
		return
	}
	if !cs.state.Cold.Spilled() {
		// What the catalogue does not know as withdrawn yet is found from then on.
		if err := cs.others.SyncInTurn(ctx); err != nil {
			return
		}
	}
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = cs.state.Cold.Files.Spill(ctx, cs.letGo); err != nil && ctx.Err() == nil {
			cs.note(err)
		}
	}
	cs.LookSpilled()
}

// note counts and logs what failed, but not what waits for the catalogue to be filled: the
// next turn tries that again.
func (cs *Space) note(err error) {
	if errors.Is(err, tiers.ErrNotNow) {
		return
	}
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	cs.state.NoteColdLocked(err)
}

// SpilledLocked is what is spilled, as of the last look.
func (cs *Space) SpilledLocked() (st residency.SpilledStats) {
	for _, f := range cs.guarded.Spilled {
		st.Files, st.Blocks, st.Names, st.Bytes = st.Files+1, st.Blocks+f.Blocks, st.Names+f.Names, st.Bytes+f.Bytes
	}
	return st
}

// LookSpilled looks which files are spilled, and returns them. Some may be because they came
// to be this rank's, and the catalogue had them.
func (cs *Space) LookSpilled() []tiers.SpilledFile {
	files := cs.state.Cold.Files.Spilled()
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	if cs.guarded.Spilled = files; len(files) > 0 {
		cs.state.Cold.SpillLocked()
	}
	return files
}

// letGo leaves blocks to the catalogue, and reports whether it has all of them to itself.
// If not, those that it left stay there.
func (cs *Space) letGo(ids []block.ID) bool {
	return cs.mayLetGo(ids) && cs.eachStep(ids, func(id block.ID) bool {
		cs.state.Cold.SpillLocked()
		b := cs.state.Mu.Blocks[id]
		return b == nil || b.From != nil || cs.state.Cold.LetGoLocked(b)
	})
}

// mayLetGo reports whether letting go of blocks would succeed, and pay.
func (cs *Space) mayLetGo(ids []block.ID) bool {
	inMemory := 0
	return cs.eachStep(ids, func(id block.ID) bool {
		b := cs.state.Mu.Blocks[id]
		if b == nil || b.From != nil {
			return true
		}
		if b.InAny() {
			inMemory++
		}
		return inMemory*spillShare <= len(ids) && cs.state.Cold.MayLetGoLocked(b)
	})
}

// eachStep calls fn for blocks with the mutex held, some at a time, until it returns
// false, which it returns.
func (cs *Space) eachStep(ids []block.ID, fn func(block.ID) bool) bool {
	for len(ids) > 0 {
		some := ids[:min(len(ids), shrinkStep)]
		ids = ids[len(some):]
		cs.state.Mu.Lock()
		for _, id := range some {
			if !fn(id) {
				cs.state.Mu.Unlock()
				return false
			}
		}
		cs.state.Mu.Unlock()
	}
	return true
}

// ReloadWasted loads files again that are worth merging, as of the last look.
func (cs *Space) ReloadWasted(ctx context.Context) {
	cs.state.Mu.Lock()
	files := cs.guarded.Spilled
	cs.state.Mu.Unlock()
	cs.reloadSome(ctx, files, func(f tiers.SpilledFile) bool { return f.Wasted })
}

// reloadSome loads those of the files that are chosen, for another reason than that their blocks should leave.
func (cs *Space) reloadSome(ctx context.Context, files []tiers.SpilledFile, chosen func(tiers.SpilledFile) bool) {
	reloaded := false
	for _, f := range files {
		if chosen(f) && ctx.Err() == nil {
			cs.Reload(ctx, f, Stay)
			reloaded = true
		}
	}
	if reloaded {
		cs.LookSpilled()
	}
}

// reloadSeconds loads files again that hold what another rank keeps too. What is in no file is
// forgotten.
func (cs *Space) reloadSeconds(ctx context.Context) {
	ids := cs.shared.Seconds()
	if len(ids) == 0 {
		return
	}
	places := cs.state.Cold.Own(ids...)
	paths := map[string]bool{}
	for _, at := range places {
		if at != nil {
			paths[at.Path] = true
		}
	}
	cs.reloadSome(ctx, cs.LookSpilled(), func(f tiers.SpilledFile) bool { return paths[f.Path] })
	var gone []block.ID
	for i, at := range places {
		if at == nil {
			gone = append(gone, ids[i])
		}
	}
	cs.shared.ForgetSeconds(gone)
}

// Fate is what is to become of blocks whose file is loaded.
type Fate uint8

const (
	// Leave: those that were not used lately are the first to leave. What keeps them is KeepHeads.
	Leave Fate = iota

	// Stay: they leave no sooner than what this run has put. Their chains may go on in files
	// that stay spilled: the heads must not leave before those.
	Stay
)

// Reload has the state know what a spilled file holds. Before it is known what of that leaves first
// nothing does. The catalogue says which names stand for it, so those on their way are made durable first.
func (cs *Space) Reload(ctx context.Context, f tiers.SpilledFile, fate Fate) {
	cs.state.Mu.Lock()
	cs.state.Cold.Loads++
	cs.state.Mu.Unlock()
	defer cs.loaded()
	a := cs.others.NewReload()
	var ids []block.ID
	err := cs.others.SyncInTurn(ctx)
	if err == nil {
		err = cs.state.Cold.Files.Reload(ctx, f, func(e tiers.Entry) error {
			ids = append(ids, e.Info.ID)
			return a.Gather(e)
		})
	}
	if err == nil {
		err = a.Run()
	}
	if err != nil && ctx.Err() == nil {
		cs.note(err)
	}
	cs.keepUsed(ids, fate)
}

// loaded ends a load of files.
func (cs *Space) loaded() {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	if cs.state.Cold.Loads--; cs.state.Cold.Loads == 0 {
		cs.state.WakeCleanerLocked(false)
	}
}

// keepUsed has those of the blocks that were used lately leave after what was not, in the
// order in which they were used, and what is above them in their chains after them; if they
// are to stay, those that were not used before these.
func (cs *Space) keepUsed(ids []block.ID, fate Fate) {
	var used [policy.Ages + 1][]block.ID
	cs.eachStep(ids, func(id block.ID) bool {
		last := cs.state.Cold.LastUse(id)
		used[last] = append(used[last], id)
		return true
	})
	for last, some := range used {
		if last == 0 && fate == Leave {
			continue
		}
		cs.eachStep(some, func(id block.ID) bool {
			cs.keepChainLocked(cs.state.Mu.Blocks[id])
			return true
		})
	}
}

// spilledDueLocked returns which spilled files are to be loaded again so that their
// blocks can leave, of so many parts that are to be adopted or loaded, and takes them
// off the list: none while there is something else that leaves before what is young.
func (cs *Space) spilledDueLocked(n int) []tiers.SpilledFile {
	n = min(max(n-len(cs.guarded.Orphans.Left), 0), len(cs.guarded.Spilled))
	if b := cs.state.Cold.VictimLocked(); len(cs.guarded.Orphans.Left) > 0 || b != nil && b.Below.Old {
		n = 0
	}
	due := cs.guarded.Spilled[:n:n]
	cs.guarded.Spilled = cs.guarded.Spilled[n:]
	return due
}

// addSpilledLocked adds spilled files to what may be adopted: behind what ended runs
// left.
func (cs *Space) addSpilledLocked(share *policy.Share) {
	for _, f := range cs.guarded.Spilled {
		share.Orphans = append(share.Orphans, f.Bytes)
	}
}

// keepChainLocked keeps a block, nil for none, and what is above it: that can't leave before.
func (cs *Space) keepChainLocked(b *residency.Block) {
	for b != nil && cs.state.Cold.KeepLocked(b) {
		names := b.Names()
		if b = nil; len(names) > 0 {
			if above := names[0].Parent(); above != nil && above.Block() != nil {
				b = residency.BlockOf(above)
			}
		}
	}
}
