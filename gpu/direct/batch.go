package direct

import (
	"context"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/store"
	"cascadekv/internal/crc32c"
	"cascadekv/internal/region"
)

// OnDisk is a pin of a block that says where it lies: Extents of package nvme's.
type OnDisk interface {
	Extents() (all []store.Extent, release func(), ok bool)
}

// Batch is blocks that are read once an event has come. It belongs to one goroutine at a time, and ends with End.
type Batch struct {
	r       *Ring
	iocb    *gio.IOCB
	word    int
	value   uint32
	reads   []region.Extent // of the memory, one for each IOCTX: what a client writes into the ring's own is not believed
	objects []object
	blocks  []held
}

// held is a block of a batch: its objects are those before end, and it stays on the disk until release.
type held struct {
	end     int
	release func()
}

// object is what has one checksum: the reads before end.
type object struct {
	end int
	crc uint32
}

// Batch returns an empty batch whose reads begin once event word word, 1 to Words, has reached a value: int32(word - value)
// >= 0. nil when as many batches as a ring has are in use, or it has ended.
func (r *Ring) Batch(word int, value uint32) *Batch {
	got, err := r.queue.GetIOCB(1, &gio.Event{Word: word, Value: value})
	if err != nil {
		return nil
	}
	return &Batch{r: r, iocb: got[0], word: word, value: value}
}

// page is what disks, files and memory have to be aligned to.
const page = 4096

// Add adds a block, whose bytes go to extents of the ring's memory, as many as it has. False, and nothing is added, where the ring can not read
// it: the block is not on the disk alone, not on whole pages, in a file that the ring has not, or more than the batch has room for.
func (b *Batch) Add(pin any, to []region.Extent) bool {
	d, ok := pin.(OnDisk)
	if !ok {
		return false
	}
	for _, e := range to {
		if e.Offset%page != 0 || e.Length%page != 0 {
			return false
		}
	}
	from, release, ok := d.Extents()
	if !ok {
		return false
	}
	reads, objects := len(b.reads), len(b.objects)
	if !b.add(from, to) {
		release()
		b.reads, b.objects = b.reads[:reads], b.objects[:objects]
		return false
	}
	b.blocks = append(b.blocks, held{len(b.objects), release})
	return true
}

func (b *Batch) add(from []store.Extent, to []region.Extent) bool {
	rest, done := to, int64(0) // done: of rest[0]
	for _, e := range from {
		if e.Bytes%page != 0 || e.Offset%page != 0 || e.Container >= len(b.r.files) || b.r.files[e.Container] < 0 {
			return false
		}
		for at := int64(0); at < e.Bytes; {
			if len(rest) == 0 || len(b.reads) == len(b.iocb.Ctx) {
				return false
			}
			memory := rest[0].Offset + done
			n := min(e.Bytes-at, rest[0].Length-done, gio.BufferBytes-memory%gio.BufferBytes)
			b.iocb.Ctx[len(b.reads)] = gio.IOCTX{
				Address: uint64(memory % gio.BufferBytes), ID: uint32(memory / gio.BufferBytes), Length: uint32(n),
				File: uint32(b.r.files[e.Container]), Offset: uint64(e.Offset + at), Bytes: uint32(n),
			}
			b.reads, at, done = append(b.reads, region.Extent{Offset: memory, Length: n}), at+n, done+n
			if done == rest[0].Length {
				rest, done = rest[1:], 0
			}
		}
		b.objects = append(b.objects, object{len(b.reads), e.CRC})
	}
	return len(rest) == 0
}

// Blocks is how many blocks were added.
func (b *Batch) Blocks() int { return len(b.blocks) }

// Begin hands the batch to the ring. From then on, until Wait returns anything but an error that matches gio.ErrTimeout, the memory is the
// disk's. Errors: those of gio.IssueIO.
func (b *Batch) Begin() error {
	b.iocb.Set(gio.Read, len(b.reads))
	return b.r.queue.IssueIO([]uint32{b.iocb.ID}, 0)
}

// Came reports whether the event of the batch has come.
func (b *Batch) Came() bool { return int32(b.r.queue.Word(b.word).Load()-b.value) >= 0 }

// Cancel has a batch end whose event has not come; one that has begun goes on.
func (b *Batch) Cancel() { _ = b.r.queue.Cancel(b.iocb.ID) } // the device is the ring's own

// Wait waits for the end of a batch that was begun. Errors: gio.ErrTimeout: it has not ended when ctx did; gio.ErrCancelled, ErrGone: no block
// was read; gio.IOError: some were not.
func (b *Batch) Wait(ctx context.Context) error { return b.r.queue.WaitCQE(ctx, b.iocb.ID) }

// Good reports whether the block that was added as the i-th was read and has its bytes, in a batch that has ended well or with a
// gio.IOError. It reads them.
func (b *Batch) Good(i int) bool {
	o, read := 0, 0
	if i > 0 {
		o = b.blocks[i-1].end
	}
	if o > 0 {
		read = b.objects[o-1].end
	}
	data := b.r.server.Data()
	for ; o < b.blocks[i].end; o++ {
		crc := uint32(0)
		for ; read < b.objects[o].end; read++ {
			if b.iocb.Failed(read) {
				return false
			}
			e := b.reads[read]
			crc = crc32c.Update(crc, data[e.Offset:][:e.Length])
		}
		if crc != b.objects[o].crc {
			return false
		}
	}
	return true
}

// End gives the batch back, and lets the blocks leave the disk. It must not be under way.
func (b *Batch) End() {
	if b.iocb == nil {
		return
	}
	_ = b.r.queue.Release(b.iocb.ID) // of a queue that has ended it is of no use
	for _, h := range b.blocks {
		h.release()
	}
	b.iocb = nil
}
