package hbm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/cuda"
)

// engine copies between the device and the host. It is safe for concurrent use.
type engine struct {
	context     *cuda.Context
	arena       []byte
	bufferBytes int64
	pinned      []byte       // of all copiers, registered once
	all         []*copier    // in the order in which they were made
	copiers     chan *copier // that are free

	direct, bounced atomic.Int64 // bytes
}

// copier is a stream and its host memory, used by one copy at a time.
type copier struct {
	stream *cuda.Stream
	memory []byte
}

// openEngine pins the copiers' memory and registers the arena.
func openEngine(o Options) (_ *engine, err error) {
	e := &engine{context: o.Context, bufferBytes: o.BufferBytes, copiers: make(chan *copier, o.Copiers)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	memory, err := unix.Mmap(-1, 0, o.Copiers*int(o.BufferBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("host memory for %d copiers of %d bytes: %w: set fewer, or raise the job's memory", o.Copiers, o.BufferBytes, err)
	}
	if err := e.context.Register(memory, cuda.Portable); err != nil {
		return nil, errors.Join(err, unix.Munmap(memory))
	}
	e.pinned = memory
	if len(o.Arena) > 0 {
		if err := e.context.Register(o.Arena, cuda.Portable); err != nil {
			return nil, err
		}
		e.arena = o.Arena
	}
	for i := range o.Copiers {
		s, err := e.context.NewStream(0)
		if err != nil {
			return nil, err
		}
		cp := &copier{stream: s, memory: memory[i*int(o.BufferBytes):][:o.BufferBytes]}
		e.all = append(e.all, cp)
		e.copiers <- cp
	}
	return e, nil
}

// close gives back what openEngine took. No copy may be under way.
func (e *engine) close() error {
	var errs []error
	for _, cp := range e.all {
		errs = append(errs, cp.stream.Destroy())
	}
	if e.arena != nil {
		errs = append(errs, e.context.Unregister(e.arena))
	}
	if e.pinned != nil {
		errs = append(errs, e.context.Unregister(e.pinned), unix.Munmap(e.pinned))
	}
	return errors.Join(errs...)
}

// registered reports whether all of p lies in the arena.
func (e *engine) registered(p []byte) bool {
	if len(e.arena) == 0 || len(p) == 0 {
		return false
	}
	first, at := uintptr(unsafe.Pointer(&e.arena[0])), uintptr(unsafe.Pointer(&p[0]))
	return at >= first && at-first <= uintptr(len(e.arena)) && uintptr(len(p)) <= uintptr(len(e.arena))-(at-first)
}

// take returns a copier, once one is free.
func (e *engine) take(ctx context.Context) (*copier, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("no copy was begun: %w", err)
	}
	select {
	case cp := <-e.copiers:
		return cp, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no copier was free: %w", ctx.Err())
	}
}

func (e *engine) give(cp *copier) { e.copiers <- cp }

// copy does copies on a copier. With keep, which holds the device memory of the copies, the context
// may end the wait, and then, and after any error, the copier is given back when the
// copies have ended. Without keep the caller gives it back, after errors as well.
func (e *engine) copy(ctx context.Context, cp *copier, copies []cuda.Copy, keep func() func()) error {
	err := cp.stream.CopyBatch(copies)
	if err == nil {
		err = cp.stream.Await(ctx)
	}
	if err == nil {
		return nil
	}
	if keep == nil {
		_ = cp.stream.Synchronize() // nothing is under way, or it has the same error
		return err
	}
	drop := keep()
	go func() {
		_ = cp.stream.Synchronize() // as above
		e.give(cp)
		drop()
	}()
	return err
}
