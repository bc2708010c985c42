package segment

import (
	"slices"

	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/space"
)

// crowd plans a merge for the number of this rank's files, and keeps the files of the
// plan, which go into one: their number goes down whatever the names take beside
// the blocks that the plan counts. Without room there is none, for it gives none back.
func (m *merge) crowd() []*file {
	s := m.s
	limits := space.Limits{Bytes: s.opt.SegmentBytes, Blocks: s.opt.SegmentBlocks}
	var small []space.Shape[*file]
	if s.mu.Lock(); s.opt.MaxFiles > 0 && s.filesLocked() > s.opt.MaxFiles {
		if short, _ := s.room.Short(); !short {
			there := slices.DeleteFunc(s.oldestLocked(), func(one space.Shape[*file]) bool { return one.File.spill.out })
			small = space.Small(there, limits)
		}
	}
	for _, one := range small {
		one.File.users++
	}
	s.mu.Unlock()
	chosen := space.Join(small, limits, nil)
	if len(chosen) < len(small) { // which of them go together depends on their chains
		chosen = space.Join(small, limits, m.chains(small))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range small {
		if slices.Contains(chosen, one) {
			m.together = true
		} else {
			s.unuseLocked(one.File)
		}
	}
	return space.Files(chosen)
}

// chains reads which files have blocks of the same chains, from their footers: the
// index has no parents. Dead blocks count too, and a file that cannot be read has
// none: the merge reports that if it is chosen.
func (m *merge) chains(files []space.Shape[*file]) *space.Chains {
	c := space.NewChains(len(files))
	for i, one := range files {
		if m.ctx.Err() != nil {
			break
		}
		entries, err := one.File.entries(m.s)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.Kind == format.KindName {
				c.Add(i, e.Name)
			}
		}
	}
	return c
}

// filesLocked is how many segments this rank has, without those that it writes to and
// those that are about to be unlinked.
func (x *index) filesLocked() (n int) {
	for f := range x.files {
		if f.own && f.done && f.path != "" && !f.removing && (f.live > 0 || f.stays || f.spill.out || x.neededLocked(f)) {
			n++
		}
	}
	return n
}
