package load

import (
	"context"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
)

// What is in files of this rank or in a segment may be in another rank's memory too. It is read
// first from where it is expected sooner, and from the other place if it is not there.

// The levels among which that is decided: the places of their lines.
const (
	inMemory = iota // another rank's
	inFiles
)

// chooseLocked decides which of some fetches, all of one request, files are read for first.
func chooseLocked(ld *Loader, fetches []*Fetch) {
	chain, choice := make([]estimate.Copies, len(fetches)), false
	for i, f := range fetches {
		memory, files := len(f.copies) > 0, true // of what the cold tier has
		if f.block == nil {
			memory, files = ld.others.MayRead(f.copies)
		}
		choice = choice || memory && files
		chain[i].Bytes = f.info.Size
		if memory {
			chain[i].Levels |= 1 << inMemory
		}
		if files {
			chain[i].Levels |= 1 << inFiles
		}
	}
	lines := make([]estimate.Line, 2)
	if choice {
		lines = []estimate.Line{inMemory: ld.state.Remote.Line(), inFiles: ld.state.Cold.Line()}
	}
	for i, level := range estimate.Fastest(chain, lines) {
		fetches[i].filesFirst = level == inFiles
		fetches[i].away = level == inMemory
	}
}

// paysToAskLocked reports whether to ask other ranks for what is to be read from the cold tier.
func paysToAskLocked(ld *Loader, fetches []*Fetch) bool {
	bytes := int64(0)
	for _, f := range fetches {
		if f.wanted.Key != "" {
			bytes += f.info.Size
		}
	}
	return ld.others.PaysToAsk(bytes)
}

// askAndStart asks other ranks for what is to be read from the cold tier, and starts the fetches.
// It is one of state.Workers.
func (ld *Loader) askAndStart(fetches []*Fetch) {
	defer fault.Guard()()
	ctx, cancel := ld.state.UntilFetched(context.Background())
	defer cancel()
	spaces := map[string][]*Fetch{}
	for _, f := range fetches {
		if f.wanted.Key != "" {
			spaces[f.wanted.NS] = append(spaces[f.wanted.NS], f)
		}
	}
	for ns, asked := range spaces { // those of a request are mostly of one
		keys, infos := make([]string, len(asked)), make([]block.Info, len(asked))
		for i, f := range asked {
			keys[i], infos[i] = f.wanted.Key, f.info
		}
		found := ld.others.InMemory(ctx, ns, keys, infos)
		ld.state.Mu.Lock()
		for i, f := range asked {
			f.copies = found[i]
		}
		ld.state.Mu.Unlock()
	}
	ld.state.Mu.Lock()
	mine := ld.startLocked(fetches)
	ld.state.Mu.Unlock()
	if mine != nil {
		defer ld.state.Workers.Done()
		ld.runElsewhere(mine)
	}
}

// turnsAway prepares a fetch that did not come from files, for err, for the memory of other ranks,
// and reports whether it is to be looked for there.
func turnsAway(ld *Loader, f *Fetch, err error) bool {
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	if f.block != nil {
		f.cold = err
	}
	if !f.filesFirst || f.away || len(f.copies) == 0 || f.copies[0].Memory == nil || ld.state.Mu.Closed {
		return false
	}
	f.away = true
	return true
}

// turnsToFiles leaves of the copies of a block that did not come from other ranks' memory those in
// files, and reports whether there are any that were not looked at.
func turnsToFiles(ld *Loader, f *Fetch) bool {
	var below []directory.Statement
	for _, st := range f.copies {
		if st.Memory = nil; others.SegmentOf(ld.state, []directory.Statement{st}) != nil {
			below = append(below, st)
		}
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	if f.filesFirst || f.block == nil && (len(below) == 0 || others.OutdatedLocked(ld.others, below)) {
		return false
	}
	f.copies, f.filesFirst, f.away = below, true, false
	if f.block != nil {
		f.copies = nil
	}
	return true
}

// notBelow ends a fetch that did not come from the cold tier, or looks for its block in other ranks' memory.
func notBelow(ctx context.Context, ld *Loader, e ended) {
	if isOver(ctx, e.err) || !turnsAway(ld, e.f, e.err) {
		ld.end(e)
		return
	}
	if e.a != nil {
		residency.AfterIO(e.err, e.a.abort)
	}
	ld.state.Workers.Go(func() { ld.runElsewhere([]*Fetch{e.f}) })
}
