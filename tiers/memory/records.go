package memory

import (
	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// spareSlabs is how many record slabs are kept free at any time: one for each
// kind of record that one commit may need. Without them a tier that is full of
// payload could not write the record of a payload that did fit.
const spareSlabs = 4

// spareSize is a run that a record slab can be made of, in bytes.
const spareSize = 64 << 10

// allocRecordLocked finds room for a record of s, and waits as Reserve does.
func (sp *space) allocRecordLocked(s *slot, size int64) (int64, error) {
	for {
		if off, ok := sp.recordRoomLocked(size); ok {
			return off, nil
		}
		if !sp.waitLocked() {
			return 0, sp.errorf(s.info.ID, tiers.ErrFull)
		}
	}
}

// recordRoomLocked finds room for a record in what is ready, spares included.
func (sp *space) recordRoomLocked(size int64) (int64, bool) {
	for {
		off, err := sp.mu.alloc.Alloc(size, arena.Records)
		if err == nil {
			return off, true
		}
		k := len(sp.mu.spares)
		if k == 0 {
			return 0, false
		}
		sp.mu.alloc.Release(sp.mu.spares[k-1], spareSize)
		sp.mu.spares = sp.mu.spares[:k-1]
	}
}

// clearCells makes the cells of a new record slab invalid as records.
func (sp *space) clearCells(z arena.Zone, off, cell, cells int64) {
	if z != arena.Records {
		return
	}
	for i := range cells {
		retract(sp.bytesOf(off+i*cell, cell))
	}
}

// writeRecordLocked writes the record of s in its cell.
func (sp *space) writeRecordLocked(s *slot) {
	p := sp.bytesOf(s.record, arena.RoundSize(blockRecordSize))
	retract(p)
	blockRecord{uid: s.uid, info: s.info, offset: s.offset, version: s.next}.write(p)
	s.next++
}

// replaceRecordLocked writes the record of s anew in another cell before the old
// one goes, so that one of them is there at any instant, and returns the old cell.
func (sp *space) replaceRecordLocked(s *slot, cell int64) (old int64) {
	old, s.record = s.record, cell
	sp.writeRecordLocked(s)
	retract(sp.bytesOf(old, blockRecordSize))
	return old
}

// renameRecordLocked writes the record of s, whose id has changed.
func (sp *space) renameRecordLocked(s *slot) {
	if cell, ok := sp.recordRoomLocked(blockRecordSize); ok {
		sp.mu.alloc.Release(sp.replaceRecordLocked(s, cell), blockRecordSize)
	} else {
		sp.writeRecordLocked(s)
	}
}

// writeRecordsLocked writes the records of a slot that has none, names last. On
// error none is left.
func (sp *space) writeRecordsLocked(s *slot, names []block.Name) error {
	off, err := sp.allocRecordLocked(s, blockRecordSize)
	if err != nil {
		return err
	}
	s.record = off
	sp.writeRecordLocked(s)
	for _, n := range names {
		r, err := sp.writeNameLocked(s, n)
		if err != nil {
			sp.dropRecordsLocked(s)
			return err
		}
		s.names.add(r)
	}
	return nil
}

// writeNameLocked records a name of s.
func (sp *space) writeNameLocked(s *slot, n block.Name) (nameRef, error) {
	size := nameRecordLen(n)
	off, err := sp.allocRecordLocked(s, size)
	if err != nil {
		return nameRef{}, err
	}
	writeName(sp.bytesOf(off, size), s.uid, n)
	return nameRef{off, size, sumOf(n)}, nil
}

func (sp *space) dropNameLocked(r nameRef) {
	retract(sp.bytesOf(r.offset, r.size))
	sp.mu.alloc.Release(r.offset, r.size)
}

// dropRecordsLocked retracts all records of a slot, names first.
func (sp *space) dropRecordsLocked(s *slot) {
	for _, r := range s.names.refs {
		sp.dropNameLocked(r)
	}
	s.names = nameSet{}
	if s.record >= 0 {
		retract(sp.bytesOf(s.record, blockRecordSize))
		sp.mu.alloc.Release(s.record, blockRecordSize)
		s.record = -1
	}
}

// findNameLocked returns the place of the record of n's (namespace, key), of which
// sum is the sum, or -1.
func (sp *space) findNameLocked(s *slot, sum uint64, n block.Name) int {
	return s.names.find(sum, func(r nameRef) bool {
		_, old, ok := readName(sp.bytesOf(r.offset, r.size))
		return ok && old.Namespace == n.Namespace && old.Key == n.Key
	})
}

// namesLocked reads the records of a slot's names.
func (sp *space) namesLocked(s *slot) (names []block.Name) {
	for _, r := range s.names.refs {
		if _, n, ok := readName(sp.bytesOf(r.offset, r.size)); ok {
			names = append(names, n)
		}
	}
	return names
}

// Link implements tiers.Tier.
func (t *Tier) Link(id block.ID, n block.Name) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.findLocked(id)
	if err != nil || t.super == nil {
		return err
	}
	r, err := t.writeNameLocked(s, n)
	if err == nil && s.gone { // while this one waited for memory
		t.dropNameLocked(r)
		err = t.errorf(id, tiers.ErrNotFound)
	}
	if err != nil {
		return err
	}
	if i := t.findNameLocked(s, r.sum, n); i >= 0 {
		t.dropNameLocked(s.names.refs[i])
		s.names.replace(i, r)
	} else {
		s.names.add(r)
	}
	return nil
}

// Unlink implements tiers.Tier.
func (t *Tier) Unlink(id block.ID, n block.Name) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return err
	}
	s := t.slots[id]
	if s == nil {
		return nil
	}
	if i := t.findNameLocked(s, sumOf(n), n); i >= 0 {
		t.dropNameLocked(s.names.refs[i])
		s.names.remove(i)
	}
	return nil
}

// Record implements tiers.Memory.
func (t *Tier) Record(id block.ID) (tiers.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.findLocked(id)
	if err == nil && s.record < 0 {
		err = t.errorf(id, tiers.ErrNotFound)
	}
	if err != nil {
		return tiers.Record{}, err
	}
	return tiers.Record{Offset: t.fileOffset(s.offset), Record: t.fileOffset(s.record), UID: s.uid}, nil
}
