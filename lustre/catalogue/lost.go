package catalogue

import (
	"sync"

	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
)

// The index has one place for each block. Where it went by a copy in a file that has gone since, a name
// leads nowhere, though the file of its own part that has the block is there. The first look-up that meets
// such a name is a miss; the next round reads the name's file once more, and puts what is nowhere.

// mostLost bounds the files that a round reads for that.
const mostLost = 64

// lost is the files with names that lead nowhere.
type lost struct {
	mu   sync.Mutex
	met  map[index.Segment]struct{} // since the last round
	read map[index.Segment]uint64   // how many files had gone when they were read for that
	gone uint64                     // files that the index was made to forget
}

// meet notes that a name in a segment leads nowhere.
func (l *lost) meet(s index.Segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, was := l.read[s]; len(l.met) == mostLost || was && at == l.gone {
		return
	}
	if l.met == nil {
		l.met = map[index.Segment]struct{}{}
	}
	l.met[s] = struct{}{}
}

// forget notes that the index is made to forget a file.
func (l *lost) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone++
}

// take returns the files that are to be read: those met since the last call, which were not read since
// a file went.
func (l *lost) take() map[index.Segment]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	met := l.met
	l.met = nil
	if l.read == nil || len(l.read) > 64*mostLost {
		l.read = map[index.Segment]uint64{}
	}
	for s := range met {
		l.read[s] = l.gone
	}
	return met
}

// meetLost notes that a name leads nowhere, unless this rank's own file has it: it knows its own blocks.
func (c *Catalogue) meetLost(s index.Segment) {
	if !c.isOwn(partOf(s)) {
		c.lost.meet(s)
	}
}

// nowhere is those blocks of a segment, of which the index has all else, that it has in no file.
func (c *Catalogue) nowhere(s index.Segment, has segment.Contents) (index.Batch, error) {
	var missing segment.Contents
	err := c.places(has.Blocks, func(it segment.Stored, at index.Block) {
		if at.Info.ID.IsZero() {
			missing.Blocks = append(missing.Blocks, it)
		}
	})
	b := c.batch(s, missing, nil)
	b.Count = true
	return b, err
}
