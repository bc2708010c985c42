package tiertest

import (
	"bytes"
	"context"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// write fills a slot in two steps, and checks what they report.
func write(t *testing.T, s tiers.Slot, it tiers.Item) {
	t.Helper()
	half := it.Info.Size / 2
	crc, err := s.Write(0, 0, it.Data[:half])
	if err == nil {
		crc, err = s.Write(crc, half, it.Data[half:])
	}
	if err != nil || crc != it.Info.CRC {
		t.Fatalf("Write of %d bytes: CRC %#x, %v; want %#x", it.Info.Size, crc, err, it.Info.CRC)
	}
}

// holds reports whether the bytes of a slot or pin in memory are those of it, by
// every way there is to look at them.
func holds(p tiers.Payload, it tiers.Item) bool {
	half := it.Info.Size / 2
	h := block.NewHasher(block.Bits256)
	crc, err := p.CRC(0, 0, half)
	if err != nil || p.Hash(h, 0, half) != nil || p.Hash(h, half, it.Info.Size) != nil {
		return false
	}
	crc, err = p.CRC(crc, half, it.Info.Size)
	b := p.Bytes()
	return err == nil && crc == it.Info.CRC && h.ID() == block.Sum(block.Bits256, it.Data) && (b == nil || bytes.Equal(b, it.Data))
}

// copies tries that blocks are copied between slots and pins of the tier and of
// one in the process's memory, and that damage on the way is found.
func (c Config) copies(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	for i, size := range sizes {
		from, to := item(uint64(i), size), item(uint64(i+100), size)
		put(t, tr, from)
		p, err := tr.Pin(from.Info.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		again := reserve(t, m, to)
		for _, src := range []tiers.Pin{p, &heldPin{Host: from.Data, info: from.Info}} {
			if err := again.CopyFrom(t.Context(), src); err != nil || !holds(again, from) {
				t.Errorf("CopyFrom of %d bytes: %v", size, err)
			}
		}
		room := tiers.Host(make([]byte, size))
		if err := room.CopyFrom(t.Context(), p); err != nil || !holds(&heldPin{Host: room}, from) {
			t.Errorf("CopyFrom of %d bytes into the process's memory: %v", size, err)
		}
		if size == 0 {
			continue
		}
		bad := &heldPin{Host: bytes.Clone(from.Data), info: from.Info}
		bad.Host[size/2] ^= 1
		wantErr(t, "CopyFrom of damaged bytes", again.CopyFrom(t.Context(), bad), tiers.ErrCorrupt)
		if c.Corrupt != nil {
			c.Corrupt(t, tr.dir, tr.Tier, from.Info.ID)
			if holds(p, from) {
				t.Errorf("%d damaged bytes are taken for sound", size)
			}
			wantErr(t, "CopyFrom of a damaged block", reserve(t, m, to).CopyFrom(t.Context(), p), tiers.ErrCorrupt)
		}
	}
}

// heldPin is a pin of bytes that are in no tier.
type heldPin struct {
	tiers.Host
	info block.Info
}

// Info implements tiers.Pin.
func (p *heldPin) Info() block.Info { return p.info }

// ReadInto implements tiers.Pin.
func (p *heldPin) ReadInto(_ context.Context, dst []byte) error {
	if block.CopyCRC(0, dst, p.Host) != p.info.CRC {
		return tiers.ErrCorrupt
	}
	return nil
}

// Offset implements tiers.Pin.
func (p *heldPin) Offset() int64 { return 0 }

// ZeroCopy implements tiers.Pin.
func (p *heldPin) ZeroCopy() bool { return false }

// Release implements tiers.Pin.
func (p *heldPin) Release() {}
