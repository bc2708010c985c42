package nvme

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// pin is a hold on a block.
type pin struct {
	tiers.Hidden
	t    *Tier
	b    *stored
	size int64
	end  sync.Once
}

// Info implements tiers.Pin.
func (p *pin) Info() block.Info {
	defer p.t.lock()()
	return p.b.info
}

// Release implements tiers.Pin.
func (p *pin) Release() {
	p.end.Do(func() {
		defer p.t.lock()()
		p.t.unpinLocked(p.b)
	})
}

// ReadInto implements tiers.Pin. dst is the caller's when it returns, whatever the disk does.
func (p *pin) ReadInto(ctx context.Context, dst []byte) error {
	var crc uint32
	at := 0
	if err := p.read(ctx, 0, p.size, func(piece []byte) { crc = block.CopyCRC(crc, dst[at:][:len(piece)], piece); at += len(piece) }); err != nil {
		return err
	}
	if info := p.Info(); crc != info.CRC {
		return p.corrupt(fmt.Errorf("%s: block %v: %w", Name, info.ID, tiers.ErrCorrupt))
	}
	return nil
}

// CRC implements tiers.Payload. It reads the disk, and gives up after some seconds.
func (p *pin) CRC(crc uint32, from, to int64) (uint32, error) {
	err := p.look(from, to, func(piece []byte) { crc = block.ExtendCRC(crc, piece) })
	return crc, err
}

// Hash implements tiers.Payload. It reads the disk, and gives up after some seconds.
func (p *pin) Hash(h *block.Hasher, from, to int64) error {
	return p.look(from, to, func(piece []byte) { h.Write(piece) })
}

func (p *pin) look(from, to int64, each func([]byte)) error {
	ctx, cancel := context.WithTimeout(context.Background(), p.t.o.readPatience)
	defer cancel()
	return p.read(ctx, from, to, each)
}

// corrupt withdraws the block.
func (p *pin) corrupt(err error) error {
	p.t.counts.corrupt.Add(1)
	defer p.t.lock()()
	p.t.forgetLocked(p.b, err)
	return err
}

// read calls each with the block's bytes from from to to, in order. Errors: tiers.ErrCorrupt (the block is withdrawn),
// tiers.ErrUnavailable.
func (p *pin) read(ctx context.Context, from, to int64, each func([]byte)) error {
	if mem := p.hold(); mem != nil {
		each(mem[from:to])
		p.unhold()
		return nil
	}
	unit := p.t.o.FileBytes
	for from < to {
		first, last := from/unit, (to+unit-1)/unit
		buffers, err := p.t.takeReaders(ctx, last-first)
		if err != nil {
			return err
		}
		last = first + int64(len(buffers))
		if err := p.fetch(ctx, first, last, buffers); err != nil {
			return err
		}
		for i, buffer := range buffers {
			begin := (first + int64(i)) * unit
			end := min(begin+unit, to)
			each(p.t.buffer(buffer)[from-begin : end-begin])
			from = end
		}
		p.t.giveReaders(buffers)
	}
	return nil
}

// hold returns the block's memory until unhold, nil if the block is on the disk alone.
func (p *pin) hold() []byte {
	defer p.t.lock()()
	if p.b.mem != nil {
		p.b.users++
	}
	return p.b.mem
}

func (p *pin) unhold() {
	defer p.t.lock()()
	p.b.users--
	p.t.freeLocked(p.b)
}

// maxTogether is how many GPU files one reader reads at once, so that others get some.
const maxTogether = 8

// takeReaders returns between one and n buffers for reads. It waits for one.
func (t *Tier) takeReaders(ctx context.Context, n int64) (buffers []int, err error) {
	if err = ctx.Err(); err == nil {
		select {
		case b := <-t.readers:
			buffers = append(buffers, b)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		t.counts.unanswered.Add(1)
		return nil, fmt.Errorf("%s: %w: no read was begun: %w", Name, tiers.ErrUnavailable, err)
	}
	for int64(len(buffers)) < min(n, maxTogether) {
		select {
		case b := <-t.readers:
			buffers = append(buffers, b)
		default:
			return buffers, nil
		}
	}
	return buffers, nil
}

func (t *Tier) giveReaders(buffers []int) {
	for _, b := range buffers {
		t.readers <- b
	}
}

func (t *Tier) buffer(n int) []byte { return t.memory[int64(n)*t.o.FileBytes:][:t.o.FileBytes] }

// fetch reads parts of the block from first to before last, one into each buffer. After an error the buffers are given back
// once nothing writes to them.
func (p *pin) fetch(ctx context.Context, first, last int64, buffers []int) error {
	t := p.t
	ids := t.parts(p.b, first, last)
	sizes := make([]int64, len(ids))
	for i := range sizes {
		sizes[i] = t.partSize(p.size, first+int64(i))
	}
	g, err := t.store.Retrieve(ids)
	if err != nil {
		t.giveReaders(buffers)
		return fmt.Errorf("%s: %w", Name, err)
	}
	if g.Blocks() < len(ids) { // somebody else found it damaged
		<-g.Close()
		t.giveReaders(buffers)
		return p.corrupt(fmt.Errorf("%s: block %v, of which %d parts are gone: %w", Name, p.Info().ID, len(ids)-g.Blocks(), tiers.ErrCorrupt))
	}
	errs := g.RetrieveAll(ctx, buffers, sizes)
	quiet := g.Close()
	if errs == nil {
		<-quiet
		return nil
	}
	select {
	case <-quiet:
		t.giveReaders(buffers)
	case <-ctx.Done():
		t.giveLate(p.b, buffers, quiet)
	case <-t.alive.Done():
		t.giveLate(p.b, buffers, quiet)
	}
	return p.failed(ctx, errs)
}

// giveLate gives buffers back once quiet is closed, and keeps the block until then.
func (t *Tier) giveLate(b *stored, buffers []int, quiet <-chan struct{}) {
	t.mu.Lock()
	b.pins++
	t.mu.users++
	t.mu.Unlock()
	t.counts.late.Add(1)
	go func() {
		<-quiet
		t.giveReaders(buffers)
		t.counts.late.Add(-1)
		defer t.lock()()
		t.unpinLocked(b)
	}()
}

// failed makes one error of those of parts: damage first.
func (p *pin) failed(ctx context.Context, errs []error) (err error) {
	for _, e := range errs {
		if errors.Is(e, tiers.ErrCorrupt) {
			return p.corrupt(fmt.Errorf("%s: block %v: %w", Name, p.Info().ID, e))
		}
		if err == nil {
			err = e
		}
	}
	if ctx.Err() != nil {
		p.t.counts.unanswered.Add(1)
	} else {
		p.t.counts.failed.Add(1)
	}
	return fmt.Errorf("%s: block %v: %w", Name, p.Info().ID, err)
}
