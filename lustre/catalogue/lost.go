package catalogue

import (
	"slices"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// The index has one place for each block. Where it went by a copy in a file that has gone since, a name
// leads nowhere, though the file of its own part that has the block is there. The first look-up that meets
// such a name is a miss; the next round reads the name's file once more, and puts what is nowhere. If it
// does not have the block, as of a block that has several names, the next rounds read the part's other files.

// mostLost bounds the files that a round reads for that.
const mostLost = 64

// lost is the files with names that lead nowhere.
type lost struct {
	mu   sync.Mutex
	met  map[index.Segment]bool   // since the last round
	read map[index.Segment]uint64 // how many files had gone when they were read for that
	gone uint64                   // files that the index was made to forget
	seek map[tiers.Part]seeking   // parts of which all files are read for that, or were
}

// seeking is how far that is.
type seeking struct {
	next uint64 // number of the next file
	done bool   // there is none
	gone uint64 // how many files had gone when it began
	anew bool   // a file went since, and a name was met that leads nowhere: from the first file on once there is none
}

// meet notes that a name in a segment leads nowhere.
func (l *lost) meet(s index.Segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, was := l.read[s]; len(l.met) == mostLost || was && at == l.gone {
		return
	}
	if l.met == nil {
		l.met = map[index.Segment]bool{}
	}
	l.met[s] = true
}

// forget notes that the index is made to forget a file.
func (l *lost) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone++
}

// take returns the files that are to be read: those met since the last call, which were not read since
// a file went.
func (l *lost) take() map[index.Segment]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	met := l.met
	l.met = nil
	if met == nil {
		met = map[index.Segment]bool{}
	}
	if l.read == nil || len(l.read) > 64*mostLost {
		l.read = map[index.Segment]uint64{}
	}
	for s := range met {
		l.read[s] = l.gone
	}
	return met
}

// begin has the next rounds read all files of a part, unless they do, or did since a file went.
func (l *lost) begin(p tiers.Part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, was := l.seek[p]; was && (!s.done || s.gone == l.gone) {
		s.anew = s.gone != l.gone
		l.seek[p] = s
		return
	}
	if l.seek == nil || len(l.seek) > 64*mostLost {
		l.seek = map[tiers.Part]seeking{}
	}
	l.seek[p] = seeking{gone: l.gone}
}

// more returns the next ones, up to most, of a part's files to be read for that. numbers are those it has.
func (l *lost) more(p tiers.Part, numbers []uint64, most int) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, is := l.seek[p]
	if !is || s.done || most <= 0 {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(numbers), func(n uint64) bool { return n < s.next })
	slices.Sort(left)
	s.done = len(left) <= most
	if left = left[:min(most, len(left))]; len(left) > 0 {
		s.next = left[len(left)-1] + 1
	}
	if s.done && s.anew { // not before: files that go one after the other must not keep it at the first ones
		s = seeking{gone: l.gone}
	}
	l.seek[p] = s
	return left
}

// meetLost notes that a name leads nowhere, unless this rank's own file has it: it knows its own blocks.
func (c *Catalogue) meetLost(s index.Segment) {
	if !c.Owns(partOf(s)) {
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

// seekOthers has the other files of the segment's part read if names in it lead nowhere whose blocks it does not have.
func (c *Catalogue) seekOthers(s index.Segment, has segment.Contents) error {
	here := make(map[block.ID]bool, len(has.Blocks))
	for _, it := range has.Blocks {
		here[it.Info.ID] = true
	}
	now := c.now()
	lost, err := compare(c, len(has.Names), func(i int) *block.Name { return &has.Names[i].Name }, func(i int, e index.Entry) bool {
		n := e.Name
		counts := e.Segment == s && !n.Dropped && n.Seq == has.Names[i].Name.Seq && (n.Expires.IsZero() || n.Expires.After(now))
		return counts && e.Block.Info.ID.IsZero() && !here[has.Names[i].ID]
	})
	if slices.Contains(lost, true) {
		c.lost.begin(partOf(s))
	}
	return err
}
