package memory

import (
	"errors"
	"os"

	"cascadekv/internal/arena"
	"cascadekv/tiers"
)

// MinBytes is the smallest arena, in bytes: room for a few slabs and blocks.
const MinBytes = 4 << 20

// Options choose the memory of a tier.
type Options struct {
	Name  string // the tier's word in statistics: "shm", "host"
	Bytes int64  // of the whole arena, MinBytes at least
	Path  string // file that outlives the process; "" means anonymous memory

	// Left returns how many more bytes the process may take, and what bounds them,
	// as part of a sentence; nil: as many as there are. It is called often, from
	// one goroutine at a time.
	Left func() (left int64, of string)

	// Job is the id of the Slurm job that this process is in, for who looks for what
	// the job has left; 0: none.
	Job uint64

	// File is an arena that an earlier program of this process had open, and its
	// lock; nil: the file is opened by Path. Open takes it over. It keeps its size.
	File *os.File

	// Held are ranges of the file that are to be kept for somebody outside, see
	// KeptRanges. Without a file none of them can be.
	Held []tiers.HeldRange
}

// Tier keeps blocks in one mapping. It implements tiers.Memory.
type Tier struct {
	*space // its mutex guards all below but opened
	opened Opened
	index
	outside    outside
	compaction compaction
	layouts    layouts
}

var _ tiers.Memory = (*Tier)(nil)

// Open maps the arena, takes over what an earlier process left in it, every
// block verified against its checksum, and starts to make the rest of the
// memory ready in the background.
//
// What is at Path never keeps a rank from starting, unless a rank uses it: Opened
// reports what became of it. An arena of another size is taken over as well; see
// resized. What is no arena of this version and user is left alone, and one of the
// names Path.1, Path.2, … serves. Errors: those of arena.MapFile.
func Open(o Options) (*Tier, error) {
	if o.Bytes < MinBytes {
		return nil, describe(o.Bytes)
	}
	size := o.Bytes / arena.Page * arena.Page
	if o.Path == "" {
		m, err := arena.MapAnonymous(size)
		if err != nil {
			return nil, err
		}
		return start(o, m, Opened{})
	}
	seen := Opened{Wanted: size}
	m, err := mapAny(o, size, &seen)
	if err != nil {
		return nil, err
	}
	t, err := start(o, m, seen)
	if err != nil || o.File != nil || len(o.Held) > 0 || int64(len(m.Bytes())) == size {
		return t, err
	}
	return t.resized(o, size)
}

// start makes a tier of a mapping, which it closes on error.
func start(o Options, m *arena.Mapping, seen Opened) (*Tier, error) {
	seen.Path, seen.Size, seen.Made = m.Path(), int64(len(m.Bytes())), m.Made()
	sp, err := layOut(o.Name, m, o.Job)
	if err != nil {
		if m.Made() {
			err = errors.Join(err, m.Unlink())
		}
		return nil, errors.Join(err, m.Close())
	}
	sp.left = o.Left
	t := &Tier{space: sp, opened: seen, index: newIndex(), layouts: layouts{}, outside: outside{kept: make([]tiers.KeptRange, len(o.Held))}}
	ready := int64(0)
	if sp.super != nil {
		sp.mu.alloc.Fresh = sp.clearCells
		ready = t.takeOver(o.Held)
	}
	sp.work(func() { sp.grow(ready) })
	sp.work(sp.renew)
	return t, nil
}

// layOut makes a space of a mapping. An arena file that is new, or no arena any
// more, gets a superblock. Each says which job has it before it takes more memory than a
// page: what a process leaves that dies is known to be its job's.
func layOut(name string, m *arena.Mapping, job uint64) (*space, error) {
	mem := m.Bytes()
	size := int64(len(mem))
	if m.Path() == "" {
		return newSpace(name, m, 0, mem, make([]byte, size/arena.Page)), nil
	}
	g := geometryOf(size)
	if err := m.Commit(0, arena.Page); err != nil {
		return nil, err
	}
	storeJob(mem, job)
	if err := m.Commit(0, g.data); err != nil {
		return nil, err
	}
	sp := newSpace(name, m, g.data, mem[g.data:][:g.capacity], mem[g.tags:][:g.capacity/arena.Page])
	sp.super, sp.zeroCopy = mem[:arena.Page], m.Lends()
	if !m.Existed() || g.checkSuper(sp.super) != nil {
		word(sp.super).Store(0)         // no magic: should the process die here, the file is new
		if sp.zeroCopy && m.Existed() { // what of it is lent, nobody knows any more
			if err := errors.Join(m.Drop(0, size), m.Commit(0, g.data)); err != nil {
				return nil, err
			}
		}
		storeJob(mem, job)
		clear(mem[:offJob])
		clear(mem[offJob+8 : g.data])
		g.writeSuper(sp.super)
	}
	storeMoving(sp.super, false) // the process before may have died of it
	return sp, nil
}

// Name implements tiers.Tier.
func (t *Tier) Name() string { return t.name }

// File implements tiers.Memory.
func (t *Tier) File() int { return t.arena.Fd() }

// Region implements tiers.Memory: the whole mapping, as File has it.
func (t *Tier) Region() []byte { return t.arena.Bytes() }

// Stats implements tiers.Tier: there is nothing but the tier's Usage.
func (t *Tier) Stats() tiers.Stats { return tiers.Stats{} }

// Usage implements tiers.Tier. Capacity is what there will be once all memory
// is ready; while a step is refused, what is ready.
func (t *Tier) Usage() tiers.Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := tiers.Usage{Capacity: int64(len(t.data)), Used: t.mu.alloc.Used(), Payload: t.payload, Blocks: len(t.slots)}
	if t.mu.growErr != nil {
		u.Missing = u.Capacity - t.mu.alloc.Size()
		u.Capacity -= u.Missing
		u.Lacks = t.mu.growErr.Error()
	}
	return u
}

// Close implements tiers.Tier. If pins outlast its patience the memory stays
// mapped for them and the error matches tiers.ErrPinned.
func (t *Tier) Close() error { return t.close(closePatience) }
