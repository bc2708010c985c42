package segment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/internal/cores"
	"cascadekv/internal/fault"
	"cascadekv/lustre/codec"
)

// stored is a block's payload as it lies in the file.
type stored struct {
	size  int64
	crc   uint32
	codec codec.Number
}

// plain is the payload of a block that is stored as it is.
func plain(info block.Info) stored { return stored{size: info.Size, crc: info.CRC} }

// fits reports whether the block may be stored so.
func (as stored) fits(info block.Info) bool {
	if as.codec == codec.None {
		return as == plain(info)
	}
	return 0 < as.size && as.size < info.Size
}

// inline reports whether the payload lies in the entry.
func (as stored) inline() bool { return as.size <= inlineMax }

// footprint is what a block takes in a segment, its entries included.
func (as stored) footprint() int64 {
	if as.inline() {
		return 2*blockEntrySize + as.size
	}
	return 2*blockEntrySize + align(as.size)
}

// parcel is an item as it goes to a file.
type parcel struct {
	Item
	as      stored
	payload []byte // as.size bytes
}

// parcels wraps items that are stored as they are.
func parcels(items []Item) []parcel {
	all := make([]parcel, len(items))
	for i, it := range items {
		all[i] = parcel{it, plain(it.Info), it.Data}
	}
	return all
}

// encode makes payloads smaller where that pays. It reads Data until it
// returns. The payloads are valid until free is called, which must be.
func (s *Store) encode(ctx context.Context, all []parcel) (free func(), err error) {
	free = func() {}
	if !s.opt.Compress {
		return free, nil
	}
	rooms, need := make([]int64, len(all)), int64(0) // where each may lie
	for i, p := range all {
		rooms[i] = need
		need += align(int64(s.coder.Room(len(p.Data))))
	}
	if need == 0 {
		return free, nil
	}
	memory, err := arena.MapAnonymous(need) // of which untouched pages cost nothing
	if err != nil {
		return free, nil // stored as they are, they need none
	}
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(len(all), cores.Count()) {
		workers.Go(func() {
			defer fault.Guard()()
			for i := next.Add(1) - 1; i < int64(len(all)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				s.encodeOne(&all[i], memory.Bytes()[rooms[i]:])
			}
		})
	}
	workers.Wait()
	return func() { _ = memory.Close() }, ctx.Err() // memory that stays mapped is all that an error means
}

// encodeOne encodes one block into room, or leaves it.
func (s *Store) encodeOne(p *parcel, room []byte) {
	room = room[:min(len(room), s.coder.Room(len(p.Data)))]
	stream := ""
	if len(p.Names) > 0 {
		stream = p.Names[0].Namespace
	}
	e, err := s.coder.Encode(stream, room, p.Data)
	if err != nil || e.Codec == codec.None {
		return
	}
	p.payload = room[:e.Size]
	p.as = stored{int64(e.Size), block.CRC(p.payload), e.Codec}
}

// landing returns where in dst, the memory of a block, its payload is read to,
// so that it can be decoded there: at the end, or, past the page cache, where
// the kernel takes it before that.
func (s *Store) landing(as stored, dst []byte) (at int) {
	at = len(dst) - int(as.size)
	if s.access.Direct && at > 0 {
		over := int(uintptr(unsafe.Pointer(&dst[at])) % pageSize)
		if over <= at {
			at -= over
		}
	}
	return at
}

// unpack makes dst the block whose payload lies in it from at on. why says what
// is wrong with the bytes, err that they could not be decoded for another
// reason; both are empty when dst is right.
func (s *Store) unpack(info block.Info, as stored, dst []byte, at int) (why string, err error) {
	payload := dst[at:][:as.size]
	if why = as.wrong(payload); why != "" || as.codec == codec.None {
		return why, nil
	}
	err = s.coder.DecodeInPlace(as.codec, dst, at, len(payload))
	switch {
	case errors.Is(err, codec.ErrCorrupt), errors.Is(err, codec.ErrUnknown):
		return err.Error(), nil
	case err != nil:
		return "", fmt.Errorf("decode with %v: %w", as.codec, err)
	}
	return plain(info).wrong(dst), nil
}

// wrong tells what is wrong with a payload, "" when it is right.
func (as stored) wrong(payload []byte) string {
	if crc := block.CRC(payload); crc != as.crc {
		return fmt.Sprintf("CRC32C %08x, want %08x", crc, as.crc)
	}
	return ""
}

// Stored returns the bytes of a block's payload as stored. Errors: ErrNotFound.
func (s *Store) Stored(id block.ID) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loc, err := s.findLocked(id)
	if err != nil {
		return 0, err
	}
	return loc.as.size, nil
}

// Encoded counts what became of blocks under one codec since the store was
// opened.
type Encoded struct {
	Name     string // of the codec
	Blocks   uint64 // put
	BytesIn  uint64 // of those blocks
	BytesOut uint64 // as stored, without padding
	Decoded  uint64 // read
}

// Encoded tells of every codec, that of blocks that are stored as they are
// among them; these are counted only with Options.Compress.
func (s *Store) Encoded() []Encoded {
	st := s.coder.Stats()
	all := make([]Encoded, len(codec.Numbers))
	for i, n := range codec.Numbers {
		c := st.Codecs[n]
		all[i] = Encoded{n.String(), c.Blocks, c.BytesIn, c.BytesOut, c.Decoded}
	}
	return all
}
