package memory

import (
	"context"
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// pin is a hold on one slot. One goroutine at a time may use it.
type pin struct {
	tiers.Host
	tier *Tier
	slot *slot
	done bool
}

// Pin implements tiers.Tier.
func (t *Tier) Pin(id block.ID) (tiers.Pin, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.findLocked(id)
	if err != nil {
		return nil, err
	}
	return t.pinLocked(s), nil
}

func (t *Tier) pinLocked(s *slot) *pin {
	s.pins++
	t.mu.users++
	return &pin{Host: t.bytesOf(s.offset, s.info.Size), tier: t, slot: s}
}

// Info implements tiers.Pin. The slot's size, checksum and place do not change while it is pinned; its id
// may, by Rename.
func (p *pin) Info() block.Info {
	p.tier.mu.Lock()
	defer p.tier.mu.Unlock()
	return p.slot.info
}

// Offset implements tiers.Pin.
func (p *pin) Offset() int64 { return p.tier.fileOffset(p.slot.offset) }

// ZeroCopy implements tiers.Pin.
func (p *pin) ZeroCopy() bool {
	t := p.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.zeroCopy && !p.done && t.mu.alloc.MarkLent(p.slot.offset, p.slot.info.Size)
}

// copyStep is how much is copied between two looks at the context.
const copyStep = 1 << 20

// ReadInto implements tiers.Pin.
func (p *pin) ReadInto(ctx context.Context, dst []byte) error {
	src := p.Host
	if len(dst) != len(src) {
		return fmt.Errorf("%s: read of %d bytes into %d: %w", p.tier.name, len(src), len(dst), tiers.ErrTooLarge)
	}
	var crc uint32
	for len(src) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: read: %w: %w", p.tier.name, tiers.ErrUnavailable, err)
		}
		n := min(copyStep, len(src))
		crc = block.CopyCRC(crc, dst[:n], src[:n])
		dst, src = dst[n:], src[n:]
	}
	p.tier.mu.Lock()
	defer p.tier.mu.Unlock()
	if crc != p.slot.info.CRC {
		p.tier.withdrawLocked(p.slot)
		return p.tier.errorf(p.slot.info.ID, tiers.ErrCorrupt)
	}
	return nil
}

// Release implements tiers.Pin.
func (p *pin) Release() {
	t := p.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.done {
		return
	}
	p.done = true
	p.slot.pins--
	t.reclaimLocked(p.slot)
	t.leaveLocked()
}
