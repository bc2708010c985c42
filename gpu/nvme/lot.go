package nvme

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"cascadekv/gpu/store"
	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// Lot is files of the tier that one writer writes by itself, and nobody else: see store.Lot. Its methods are safe for concurrent use.
type Lot struct {
	t   *Tier
	lot *store.Lot

	// Guarded by the tier's mutex:
	used   int64 // GPU files of blocks and arrivals
	ending bool  // nobody reserves there any more
	closed bool  // the tier has its files
}

// TakeLot takes a lot, nil if there is none to have, or the tier is closed. Its room counts as used until it is closed, which the tier's Close
// waits for.
func (t *Tier) TakeLot() *Lot {
	defer t.lock()()
	if t.usableLocked() != nil {
		return nil
	}
	lot := t.store.TakeLot()
	if lot == nil {
		return nil
	}
	t.mu.used += int64(lot.Files())
	t.mu.users++
	return &Lot{t: t, lot: lot}
}

// Close gives the room back. Nobody may write to the files any more. It may wait for the disk: see store.Lot.Close. After an error the room
// counts as used still. Errors: tiers.ErrUnavailable.
func (l *Lot) Close() error {
	t := l.t
	t.mu.Lock()
	ended := l.ending
	l.ending = true
	t.mu.Unlock()
	if ended {
		return nil
	}
	err := l.lot.Close()
	defer t.lock()()
	if t.mu.users--; err == nil {
		l.closed = true
		t.mu.used -= int64(l.lot.Files()) - l.used
	} else {
		err = fmt.Errorf("%s: %w", Name, err)
	}
	t.wakeLocked()
	return err
}

// giveLocked counts GPU files that are used no more, of a lot or, where l is nil or closed, of the tier.
func (t *Tier) giveLocked(l *Lot, n int64) {
	if l != nil {
		l.used -= n
	}
	if l == nil || l.closed {
		t.mu.used -= n
	}
}

// Containers returns the numbers of the lot's files: see Tier.Containers.
func (l *Lot) Containers() []int { return l.lot.Containers() }

// Probe is Tier.Probe of the lot's own files, to which it writes too.
func (l *Lot) Probe() error { return l.lot.Probe() }

// Open opens the lot's files for reading and writing, by their numbers. It waits for the disks until ctx ends. The caller closes
// them. Errors: tiers.ErrUnavailable.
func (l *Lot) Open(ctx context.Context) (map[int]*os.File, error) {
	paths, own, files := l.t.store.Containers(), l.Containers(), map[int]*os.File{}
	all, err := l.t.opener.open(ctx, len(own), func(i int) (vfs.File, error) { return l.t.o.FS.Reopen(paths[own[i]]) })
	for i, f := range all {
		files[own[i]] = f
	}
	return files, err
}

// Arrival is blocks that are written to a lot by its owner. It belongs to one goroutine at a time, and ends with Register or Abort.
type Arrival struct {
	l      *Lot
	put    *store.Put
	blocks []arriving
}

// arriving is a block of an arrival.
type arriving struct {
	stay  stay
	size  int64
	first int // of its parts in the put
}

// Reserve takes room for the first of some blocks, as many as there is room for at once: none, and nil, also while the tier takes no new
// blocks. It waits for no I/O.
func (l *Lot) Reserve(sizes []int64) *Arrival {
	t := l.t
	defer t.lock()()
	if t.usableLocked() != nil || t.brokenLocked() != nil || t.mu.hangs() || l.ending {
		return nil
	}
	a, free, files := &Arrival{l: l}, int64(l.lot.Free()), int64(0)
	var ids []block.ID
	for _, size := range sizes {
		n := t.files(size)
		if files += n; size <= 0 || files > free {
			if l.used+files <= int64(l.lot.Files()) {
				t.kick() // what has left is free once that is in the log
			}
			files -= n
			break
		}
		b := arriving{newStay(), size, len(ids)}
		for i := range n {
			ids = append(ids, b.stay.part(i))
		}
		a.blocks = append(a.blocks, b)
	}
	if len(ids) == 0 {
		return nil
	}
	var err error
	if a.put, err = l.lot.Reserve(ids); err != nil || a.put == nil { // somebody else was faster
		return nil
	}
	l.used += files
	t.mu.users++
	return a
}

// Blocks is how many blocks have room.
func (a *Arrival) Blocks() int { return len(a.blocks) }

// Extents returns where the block at i is to be written, in the order of its bytes, in files by their number: see Lot.Open. Each object
// has its last page to itself.
func (a *Arrival) Extents(i int) (all []store.Extent) {
	b := a.blocks[i]
	for part := range a.l.t.files(b.size) {
		all, _ = a.put.Extents(all, b.first+int(part), a.l.t.partSize(b.size, part)) // sizes are those of parts
	}
	return all
}

// objects is how many extents so many bytes of a GPU file are.
func (t *Tier) objects(size int64) int64 {
	one := t.o.FileBytes / int64(2*t.o.layers())
	return (size + one - 1) / one
}

// Register makes the blocks durable that were written, those of which crcs has the CRC32C of each extent, and gives up the others. It returns
// a slot for each, to be committed with what its bytes are: nil for one that is not there. It waits for the disk until ctx ends: then
// no block is there, and the room is given back when the disk has answered. Nobody may write to it any more. Errors: tiers.ErrUnavailable,
// tiers.ErrFull, for want of room in the log.
func (a *Arrival) Register(ctx context.Context, crcs [][]uint32) ([]tiers.Slot, error) {
	t := a.l.t
	for i, b := range a.blocks {
		rest := crcs[i]
		for part := range t.files(b.size) {
			if rest == nil {
				break
			}
			size := t.partSize(b.size, part)
			n := t.objects(size)
			a.put.Written(b.first+int(part), size, rest[:n])
			rest = rest[n:]
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, quiet, err := a.put.Commit(t.alive)
		select {
		case <-quiet:
		case <-t.alive.Done(): // the room is nobody's any more
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		slots := a.settle()
		for i, s := range slots {
			if s == nil && crcs[i] != nil {
				return slots, fmt.Errorf("%s: %w", Name, cmp.Or(err, tiers.ErrUnavailable))
			}
		}
		return slots, nil
	case <-ctx.Done():
	}
	go func() {
		<-ended
		for _, s := range a.settle() {
			if s != nil {
				s.Abort()
			}
		}
	}()
	return nil, fmt.Errorf("%s: %w: the disk has not answered: %w", Name, tiers.ErrUnavailable, context.Cause(ctx))
}

// settle ends an arrival whose put is committed.
func (a *Arrival) settle() []tiers.Slot {
	t := a.l.t
	defer t.lock()()
	slots := make([]tiers.Slot, len(a.blocks))
	for i, arrived := range a.blocks {
		b := &stored{stay: arrived.stay, info: block.Info{Size: arrived.size}, lot: a.l, written: true}
		ids := t.parts(b, 0, t.files(b.info.Size))
		if t.store.Has(ids) == len(ids) {
			slots[i] = &written{t: t, b: b}
			t.mu.users++
			continue
		}
		t.removeParts(b)
		t.giveLocked(a.l, int64(len(ids)))
	}
	t.mu.users--
	t.wakeLocked()
	return slots
}

// Abort gives the room back. Nobody may write to it any more.
func (a *Arrival) Abort() {
	<-a.put.Abort() // no transfer is the store's, so it has happened at once
	t := a.l.t
	defer t.lock()()
	for _, b := range a.blocks {
		t.giveLocked(a.l, t.files(b.size))
	}
	t.mu.users--
	t.wakeLocked()
}

// written is a slot whose bytes somebody else has written to the disk, which has them durably.
type written struct {
	tiers.Hidden
	t     *Tier
	b     *stored
	ended bool // guarded by the tier's mutex
}

// errWritten is of what can not be done with a slot whose bytes are on the disk already.
var errWritten = fmt.Errorf("%s: %w: the slot is filled", Name, tiers.ErrUnavailable)

// CRC implements tiers.Payload: whoever wrote the bytes has it.
func (w *written) CRC(uint32, int64, int64) (uint32, error) { return 0, errWritten }

// Hash implements tiers.Payload: likewise.
func (w *written) Hash(*block.Hasher, int64, int64) error { return errWritten }

// Write implements tiers.Slot.
func (w *written) Write(uint32, int64, []byte) (uint32, error) { return 0, errWritten }

// CopyFrom implements tiers.Slot.
func (w *written) CopyFrom(context.Context, tiers.Pin) error { return errWritten }

// Commit implements tiers.Slot. The block is durable about a second later.
func (w *written) Commit(info block.Info, names []block.Name) error {
	t, b := w.t, w.b
	defer t.lock()()
	if w.ended {
		return nil
	}
	err := t.refusedLocked(info, b.info.Size, names)
	if err == nil && t.mu.stays[b.stay.generation()] != nil {
		err = fmt.Errorf("%s: block %v: %w", Name, info.ID, tiers.ErrExists)
	}
	if err != nil {
		w.endLocked()
		return err
	}
	w.ended = true
	t.mu.users--
	b.info = info
	t.addLocked(b, names)
	t.wakeLocked()
	return nil
}

// Abort implements tiers.Slot.
func (w *written) Abort() {
	defer w.t.lock()()
	if !w.ended {
		w.endLocked()
	}
}

// endLocked gives the room back, which is free once that is in the log.
func (w *written) endLocked() {
	w.ended = true
	w.t.removeParts(w.b)
	w.t.kick()
	w.t.giveLocked(w.b.lot, w.t.files(w.b.info.Size))
	w.t.mu.users--
	w.t.wakeLocked()
}
