package segment

import (
	"unsafe"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// blocksOf returns items as blocks that are stored as they are.
func blocksOf(items []tiers.Item) []format.Block {
	all := make([]format.Block, len(items))
	for i, it := range items {
		all[i] = format.Block{Info: it.Info, Names: it.Names, As: format.Plain(it.Info), Bytes: it.Data}
	}
	return all
}

// payloadStart returns where in dst, the memory of a block, its payload is read to,
// so that it can be decoded there: at the end, or, past the page cache, where
// the kernel takes it before that.
func (a *access) payloadStart(as format.Payload, dst []byte) (at int) {
	at = len(dst) - int(as.Size)
	if a.Direct && at > 0 {
		over := int(uintptr(unsafe.Pointer(&dst[at])) % format.PageSize)
		if over <= at {
			at -= over
		}
	}
	return at
}

// StoredSize implements tiers.Files.
func (s *Store) StoredSize(info block.Info) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if loc, err := s.findLocked(info.ID); err == nil {
		return loc.as.Size
	}
	return info.Size
}

// Encoded reports every codec, "none" among them, which
// is counted only with Options.Compress.
func (s *Store) Encoded() tiers.Encoded {
	st := s.coder.Stats()
	e := tiers.Encoded{Codecs: make([]tiers.Codec, len(codec.Numbers))}
	for i, n := range codec.Numbers {
		c := st.Codecs[n]
		e.Codecs[i] = tiers.Codec{Name: n.String(), Blocks: c.Blocks, BytesIn: c.BytesIn, BytesOut: c.BytesOut, Decoded: c.Decoded}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Stored = s.stored
	for f := range s.files {
		if f.spill.out {
			e.Stored += f.spill.stored
		}
	}
	return e
}
