package direct

import (
	"context"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/gpu/store"
	"cascadekv/internal/block"
	"cascadekv/internal/crc32c"
	"cascadekv/internal/region"
	"cascadekv/tiers"
)

// OnDisk is a pin of a block that says where it lies: Extents of package nvme's.
type OnDisk interface {
	Extents() (all []store.Extent, release func(), ok bool)
}

// Batch is blocks that are read, or written, once an event has come. It belongs to one goroutine at a time, and ends with End.
type Batch struct {
	r       *Ring
	iocb    *gio.IOCB
	op      gio.Op
	word    int
	value   uint32
	moves   []region.Extent // of the memory, one for each IOCTX: what a client writes into the ring's own is not believed
	objects []object
	blocks  []held
	arrival *nvme.Arrival // room of what is written, nil once that is registered
	late    bool          // it has not ended in time
}

// held is a block of a batch: its objects are those before end. One that is read stays on the disk until release, one that is
// written has the room of that number in the arrival.
type held struct {
	end     int
	release func()
	number  int
}

// object is what has one checksum: the moves before end.
type object struct {
	end int
	crc uint32
}

// Batch returns an empty batch of one direction that begins once event word word, 1 to Words, has reached a value: int32(word - value)
// >= 0. nil when as many batches as a ring has are in use, one of them is late, it has ended, or it has no files to write to yet.
func (r *Ring) Batch(op gio.Op, word int, value uint32) *Batch {
	if r.late.Load() > 0 {
		return nil
	}
	if op == gio.Write && !r.Writes() {
		r.look()
		return nil
	}
	got, err := r.queue.GetIOCB(1, &gio.Event{Word: word, Value: value})
	if err != nil {
		return nil
	}
	return &Batch{r: r, iocb: got[0], op: op, word: word, value: value}
}

// page is what disks, files and memory have to be aligned to.
const page = 4096

// whole reports whether extents are of whole pages.
func whole(all []region.Extent) bool {
	for _, e := range all {
		if e.Offset%page != 0 || e.Length%page != 0 {
			return false
		}
	}
	return true
}

// Add adds a block to a batch of reads, whose bytes go to extents of the ring's memory, as many as it has. False, and nothing is added, where the ring can not read
// it: the block is not on the disk alone, not on whole pages, in a file that the ring has not, or more than the batch has room for.
func (b *Batch) Add(pin any, to []region.Extent) bool {
	d, ok := pin.(OnDisk)
	if !ok || !whole(to) {
		return false
	}
	from, release, ok := d.Extents()
	if !ok {
		return false
	}
	if !b.add(from, to) {
		release()
		return false
	}
	b.blocks = append(b.blocks, held{end: len(b.objects), release: release})
	return true
}

// Store makes an empty batch one of blocks that are written to the disk, the bytes of each from extents of the ring's memory, and returns
// which of them it has: not those that are not on whole pages, those for which there is no room, and what is more than the batch has room
// for. Once.
func (b *Batch) Store(from [][]region.Extent) (has []bool) {
	has = make([]bool, len(from))
	var at []int
	var sizes []int64
	for i, all := range from {
		size := int64(0)
		for _, e := range all {
			size += e.Length
		}
		if whole(all) {
			at, sizes = append(at, i), append(sizes, size)
		}
	}
	if b.arrival = b.r.lot.Load().Reserve(sizes); b.arrival == nil {
		return has
	}
	for n := range b.arrival.Blocks() {
		i := at[n]
		if has[i] = b.add(b.arrival.Extents(n), from[i]); has[i] {
			b.blocks = append(b.blocks, held{end: len(b.objects), release: func() {}, number: n})
		}
	}
	return has
}

// add adds moves between the disk and the memory; all of a block, or none.
func (b *Batch) add(disk []store.Extent, memory []region.Extent) (ok bool) {
	moves, objects := len(b.moves), len(b.objects)
	defer func() {
		if !ok {
			b.moves, b.objects = b.moves[:moves], b.objects[:objects]
		}
	}()
	rest, done := memory, int64(0) // done: of rest[0]
	for _, e := range disk {
		if e.Bytes%page != 0 || e.Offset%page != 0 || e.Container >= len(b.r.has) || !b.r.has[e.Container].Load() {
			return false
		}
		for at := int64(0); at < e.Bytes; {
			if len(rest) == 0 || len(b.moves) == len(b.iocb.Ctx) {
				return false
			}
			memory := rest[0].Offset + done
			n := min(e.Bytes-at, rest[0].Length-done, gio.BufferBytes-memory%gio.BufferBytes)
			b.iocb.Ctx[len(b.moves)] = gio.IOCTX{
				Address: uint64(memory % gio.BufferBytes), ID: uint32(memory / gio.BufferBytes), Length: uint32(n),
				File: uint32(e.Container), Offset: uint64(e.Offset + at), Bytes: uint32(n),
			}
			b.moves, at, done = append(b.moves, region.Extent{Offset: memory, Length: n}), at+n, done+n
			if done == rest[0].Length {
				rest, done = rest[1:], 0
			}
		}
		b.objects = append(b.objects, object{len(b.moves), e.CRC})
	}
	return len(rest) == 0
}

// Blocks is how many blocks were added.
func (b *Batch) Blocks() int { return len(b.blocks) }

// Begin hands the batch to the ring. From then on, until Wait returns anything but an error that matches gio.ErrTimeout, the memory is the
// disk's. Errors: those of gio.IssueIO.
func (b *Batch) Begin() error {
	b.iocb.Set(b.op, len(b.moves))
	return b.r.queue.IssueIO([]uint32{b.iocb.ID}, 0)
}

// Came reports whether an event word, 1 to Words, has reached a value.
func (r *Ring) Came(word int, value uint32) bool { return int32(r.Word(word)-value) >= 0 }

// Word returns the value of an event word.
func (r *Ring) Word(word int) uint32 { return r.queue.Word(word).Load() }

// Cancel has a batch end whose event has not come; one that has begun goes on.
func (b *Batch) Cancel() { _ = b.r.queue.Cancel(b.iocb.ID) } // the device is the ring's own

// Wait waits for the end of a batch that was begun. Errors: gio.ErrTimeout: it has not ended when ctx did; gio.ErrCancelled, ErrGone: no block
// was moved; gio.IOError: some were not.
func (b *Batch) Wait(ctx context.Context) error { return b.r.queue.WaitCQE(ctx, b.iocb.ID) }

// Good reports whether the block that was added as the i-th to a batch of reads was read and has its bytes, in a batch that has ended well or with a
// gio.IOError. It reads them.
func (b *Batch) Good(i int) bool {
	if !b.moved(i) {
		return false
	}
	data := b.r.server.Data()
	for o := b.first(i); o < b.blocks[i].end; o++ {
		crc := uint32(0)
		for _, e := range b.movesOf(o) {
			crc = crc32c.Update(crc, data[e.Offset:][:e.Length])
		}
		if crc != b.objects[o].crc {
			return false
		}
	}
	return true
}

// first is the first object of a block.
func (b *Batch) first(i int) int {
	if i == 0 {
		return 0
	}
	return b.blocks[i-1].end
}

// firstMove is the first move of an object.
func (b *Batch) firstMove(o int) int {
	if o == 0 {
		return 0
	}
	return b.objects[o-1].end
}

func (b *Batch) movesOf(o int) []region.Extent { return b.moves[b.firstMove(o):b.objects[o].end] }

// moved reports whether no move of a block has failed.
func (b *Batch) moved(i int) bool {
	for m := b.firstMove(b.first(i)); m < b.objects[b.blocks[i].end-1].end; m++ {
		if b.iocb.Failed(m) {
			return false
		}
	}
	return true
}

// Written is a block that a batch has written: what it is, and a slot of the tier that is filled with it, nil if it is not there.
type Written struct {
	Slot tiers.Slot
	Info block.Info
}

// Register has the disk register the blocks of a batch of writes, in the order in which they were added, that has ended well or with a
// gio.IOError, and makes ids of so many bits: see nvme.Arrival. It reads their bytes, several blocks at once by spread. When it returns nothing
// reads them any more. The caller commits each slot, or gives it back. Errors: those of nvme.Arrival.Register.
func (b *Batch) Register(ctx context.Context, bits int, spread func(n int, do func(i int))) ([]Written, error) {
	all, crcs := make([]Written, len(b.blocks)), make([][]uint32, b.arrival.Blocks())
	spread(len(all), func(i int) {
		if b.moved(i) {
			all[i].Info, crcs[b.blocks[i].number] = b.sums(i, bits)
		}
	})
	slots, err := b.arrival.Register(ctx, crcs)
	b.arrival = nil
	for i := range all {
		if slots != nil {
			all[i].Slot = slots[b.blocks[i].number]
		}
	}
	return all, err
}

// sumStep is what is copied of a client's memory to be summed: little enough to stay in the caches of a core.
const sumStep = 64 << 10

// sums reads a block, and returns the CRC32C of each of its objects. Its bytes are read once, by a copy: a client that changes them
// meanwhile has the id and the checksums of the same bytes, which may be others than those on the disk.
func (b *Batch) sums(i, bits int) (info block.Info, crcs []uint32) {
	data, h := b.r.server.Data(), block.NewHasher(bits)
	buffer := make([]byte, sumStep)
	for o := b.first(i); o < b.blocks[i].end; o++ {
		crc := uint32(0)
		for _, e := range b.movesOf(o) {
			for at := int64(0); at < e.Length; {
				p := buffer[:min(sumStep, e.Length-at)]
				copy(p, data[e.Offset+at:])
				_, _ = h.Write(p) // it does not fail
				crc, info.CRC = crc32c.Update(crc, p), crc32c.Update(info.CRC, p)
				at += int64(len(p))
			}
			info.Size += e.Length
		}
		crcs = append(crcs, crc)
	}
	info.ID = h.ID()
	return info, crcs
}

// End gives the batch back, with the room of what is not registered, and lets the blocks leave the disk. It must not be under way.
func (b *Batch) End() {
	if b.iocb == nil {
		return
	}
	_ = b.r.queue.Release(b.iocb.ID) // of a queue that has ended it is of no use
	for _, h := range b.blocks {
		h.release()
	}
	if b.arrival != nil {
		b.arrival.Abort()
	}
	if b.late {
		b.r.late.Add(-1)
	}
	b.iocb = nil
}
