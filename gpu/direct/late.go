package direct

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"cascadekv/gpu/gio"
	"cascadekv/tiers"
)

// What is not believed of a ring is that a disk hangs: its client can have a batch not end, by what it writes into the ring. So the disks
// are asked by this process itself, and a ring with a batch that does not end takes no others.

// probes are looks at the disks by operation, of which there is one at a time.
type probes struct {
	sync.Mutex
	now [2]*probe
}

// probe is one look at the disks.
type probe struct {
	done chan struct{}
	err  error
}

// errUnknown is of a ring over files of nobody.
var errUnknown = fmt.Errorf("direct: %w: nobody can ask the disks", tiers.ErrUnavailable)

// Answers returns nil if the disks of the ring answer to reads of this process, and for gio.Write to writes to the ring's files, until ctx
// ends. One goroutine of the ring at most waits for disks that hang. Errors: tiers.ErrUnavailable.
func (r *Ring) Answers(ctx context.Context, op gio.Op) error {
	ask := r.ask(op)
	if ask == nil {
		return errUnknown
	}
	p := r.probes.join(op, ask)
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("direct: %w: %w", tiers.ErrUnavailable, context.Cause(ctx))
	}
}

// ask is what asks the disks, nil if nobody can.
func (r *Ring) ask(op gio.Op) func() error {
	lot := r.lot.Load()
	switch {
	case r.disks == nil, op == gio.Write && lot == nil:
		return nil
	case op == gio.Write:
		return lot.Probe
	}
	return r.disks.Probe
}

// join returns the look of an operation that is under way, or begins one.
func (p *probes) join(op gio.Op, ask func() error) *probe {
	p.Lock()
	defer p.Unlock()
	if now := p.now[op]; now != nil {
		return now
	}
	now := &probe{done: make(chan struct{})}
	p.now[op] = now
	go func() {
		now.err = ask()
		p.Lock()
		p.now[op] = nil
		p.Unlock()
		close(now.done)
	}()
	return now
}

// Late makes a batch that was begun, and has not ended in time, one for whose end Linger waits. Until End the ring takes no others.
func (b *Batch) Late() {
	if !b.late {
		b.late = true
		b.r.late.Add(1)
	}
}

// Linger waits until nothing of a batch is under way any more: it has ended, or all of its ring has.
func (b *Batch) Linger() {
	for {
		switch err := b.Wait(context.Background()); {
		case errors.Is(err, gio.ErrTimeout):
		case errors.Is(err, gio.ErrGone), errors.Is(err, gio.ErrState): // of the ring, by what its client can write to as well
			<-b.r.server.Done()
			return
		default:
			return
		}
	}
}
