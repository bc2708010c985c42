package testdevice

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Faults are what goes wrong in a tier. The zero value is nothing.
type Faults struct {
	Reserves, Reads, Writes error // that they end with
	HangReads, HangWrites   bool  // they do not end before the faults change
}

// Set replaces the faults. What hung goes on by the new ones.
func (t *Tier) Set(f Faults) {
	defer t.lock()()
	t.faults = f
	close(t.over)
	t.over = make(chan struct{})
}

// Hanging returns how many reads and writes hang that somebody waits for.
func (t *Tier) Hanging() int {
	defer t.lock()()
	return t.hanging
}

func (t *Tier) hang(by int) {
	defer t.lock()()
	t.hanging += by
}

// lingering is an operation that was left before it ended.
type lingering struct {
	cause error
	done  chan struct{}
}

func (l *lingering) Error() string         { return fmt.Sprintf("device: it hangs: %v", l.cause) }
func (l *lingering) Unwrap() []error       { return []error{tiers.ErrUnavailable, l.cause} }
func (l *lingering) Done() <-chan struct{} { return l.done }

// do carries out a read or a write, as far as the faults let it. One that hangs goes on by itself when ctx ends.
func (t *Tier) do(ctx context.Context, write bool, op func() error) error {
	for {
		t.mu.Lock()
		err, hangs, over := t.faults.Reads, t.faults.HangReads, t.over
		if write {
			err, hangs = t.faults.Writes, t.faults.HangWrites
		}
		t.mu.Unlock()
		switch {
		case err != nil:
			return err
		case !hangs:
			return op()
		}
		t.hang(1)
		select {
		case <-over:
			t.hang(-1)
		case <-ctx.Done():
			t.hang(-1)
			l := &lingering{ctx.Err(), make(chan struct{})}
			go func() {
				defer close(l.done)
				_ = t.do(context.Background(), write, op)
			}()
			return l
		}
	}
}

// Link implements tiers.Tier.
func (t *Tier) Link(id block.ID, n block.Name) error {
	return t.with(called(id), func(h *hidden) error { h.names[[2]string{n.Namespace, n.Key}] = n; return nil })
}

// Unlink implements tiers.Tier.
func (t *Tier) Unlink(id block.ID, n block.Name) error {
	err := t.with(called(id), func(h *hidden) error {
		if key := [2]string{n.Namespace, n.Key}; h.names[key].Seq < n.Seq {
			delete(h.names, key)
		}
		return nil
	})
	if errors.Is(err, tiers.ErrNotFound) {
		return nil
	}
	return err
}

// Reopened returns a tier with what t has at this moment, as the next process finds it on a disk.
func (t *Tier) Reopened() *Tier {
	defer t.lock()()
	again := New(t.capacity)
	for id, h := range t.blocks {
		names := map[[2]string]block.Name{}
		for k, n := range h.names {
			names[k] = n
		}
		again.blocks[id] = &hidden{Host: append([]byte(nil), h.Host...), tier: again, info: h.info, stay: h.stay, names: names}
		again.used += h.info.Size
	}
	return again
}

// Recover implements tiers.Tier.
func (t *Tier) Recover(fn func(tiers.Entry) error) error {
	t.mu.Lock()
	var all []tiers.Entry
	for _, h := range t.blocks {
		e := tiers.Entry{Info: h.info}
		for _, n := range h.names {
			e.Names = append(e.Names, n)
		}
		all = append(all, e)
	}
	t.mu.Unlock()
	for _, e := range all {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}
