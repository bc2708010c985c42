package store

import (
	"errors"
	"fmt"
	"math"
)

// ErrMemory marks memory of an engine that no table can describe.
var ErrMemory = errors.New("store: not an engine's memory")

// Entry is one piece of memory, contiguous for the device that moves it: an NVMe
// SGL descriptor's address, length and identifier, 16 bytes.
type Entry struct {
	Addr uint64
	Len  uint32
	ID   uint32 // of the tensor that it is of
}

// entryBytes is what an Entry takes, and granule the memory that one describes by
// default: what a GPU maps together.
const (
	entryBytes = 16
	granule    = 64 << 10
)

// Tensor is where the objects of one number lie, of all engine slots.
type Tensor struct {
	Base   uint64 // address of slot 0
	Stride int64  // from one slot to the next, in bytes
}

// Memory is an engine's blocks: it is allocated once, and stays where it is.
type Memory struct {
	Slots   int
	Tensors []Tensor // by object number

	// Granule is how much is contiguous for a device, at least; 0 is 64 KiB.
	Granule int64

	// Translate returns the address that a device uses for addr. What it returns holds for
	// Granule bytes. nil: they are the same.
	Translate func(addr uint64) (uint64, error)
}

// Table has the pieces of all memory of an engine, computed once. It is safe for
// concurrent use.
type Table struct {
	bytes   int64 // of an object
	granule int64
	slots   int
	tensors []tensor
	entries []Entry
}

type tensor struct {
	Tensor
	first int // entry
}

// maxMemory bounds the memory of an engine.
const maxMemory = 1 << 46

// NewTable describes memory whose objects have that many bytes. Errors: ErrMemory,
// those of Translate.
func NewTable(m Memory, objectBytes int64) (*Table, error) {
	t := &Table{bytes: objectBytes, granule: m.Granule, slots: m.Slots}
	if t.granule == 0 {
		t.granule = granule
	}
	if objectBytes < 1 || t.granule < page || t.granule > 1<<30 || m.Slots < 0 {
		return nil, fmt.Errorf("%w: %d slots, objects of %d bytes, pieces of %d", ErrMemory, m.Slots, objectBytes, t.granule)
	}
	total := 0
	for i, x := range m.Tensors {
		if x.Stride < objectBytes || m.Slots > 0 && (x.Stride > maxMemory/int64(len(m.Tensors))/int64(m.Slots) || x.Base > math.MaxUint64-uint64(x.Stride)*uint64(m.Slots)) {
			return nil, fmt.Errorf("%w: tensor %d at %#x, %d bytes from slot to slot", ErrMemory, i, x.Base, x.Stride)
		}
		total += int((int64(m.Slots)*x.Stride + t.granule - 1) / t.granule)
	}
	t.entries = make([]Entry, 0, total)
	for i, x := range m.Tensors {
		t.tensors = append(t.tensors, tensor{x, len(t.entries)})
		for left, at := int64(m.Slots)*x.Stride, x.Base; left > 0; left, at = left-t.granule, at+uint64(t.granule) {
			addr := at
			if m.Translate != nil {
				var err error
				if addr, err = m.Translate(at); err != nil {
					return nil, fmt.Errorf("translate %#x of tensor %d: %w", at, i, err)
				}
			}
			t.entries = append(t.entries, Entry{addr, uint32(min(left, t.granule)), uint32(i)})
		}
	}
	return t, nil
}

// Bytes returns what the table takes in memory.
func (t *Table) Bytes() int64 { return int64(len(t.entries)) * entryBytes }

// Append appends the pieces of an object in an engine slot, those that touch as one.
// Errors: ErrMemory, if there is no such object or slot.
func (t *Table) Append(out []Entry, object, slot int) ([]Entry, error) {
	return t.part(out, object, slot, t.bytes)
}

// part is Append of the first left bytes of an object.
func (t *Table) part(out []Entry, object, slot int, left int64) ([]Entry, error) {
	if object < 0 || object >= len(t.tensors) || slot < 0 || slot >= t.slots {
		return out, fmt.Errorf("%w: it has no object %d in slot %d", ErrMemory, object, slot)
	}
	x, begin := t.tensors[object], len(out)
	at := int64(slot) * x.Stride
	for left > 0 {
		e := t.entries[x.first+int(at/t.granule)]
		skip := at % t.granule
		e.Addr += uint64(skip)
		e.Len = uint32(min(int64(e.Len)-skip, left))
		at, left = at+int64(e.Len), left-int64(e.Len)
		if n := len(out); n > begin && out[n-1].Addr+uint64(out[n-1].Len) == e.Addr && out[n-1].Len+e.Len > e.Len {
			out[n-1].Len += e.Len
			continue
		}
		out = append(out, e)
	}
	return out, nil
}

// Sizes is what describing memory to a device takes.
type Sizes struct {
	Pages     int64 `json:"pages"`           // of 4 KiB
	Lists     int64 `json:"lists"`           // pieces of 64 KiB, each a PRP list of its own or one SGL entry
	PRPBytes  int64 `json:"prp_list_bytes"`  // a page for each list
	SGLBytes  int64 `json:"sgl_table_bytes"` // 16 bytes for each entry
	PoolBytes int64 `json:"pool_bytes"`
}

// SizesOf returns them for an engine's memory of so many bytes (Tutti §3.1).
func SizesOf(pool int64) Sizes {
	lists := (pool + granule - 1) / granule
	return Sizes{(pool + page - 1) / page, lists, lists * page, lists * entryBytes, pool}
}
