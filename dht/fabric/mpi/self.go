//go:build mpi

package mpi

import (
	"bytes"
	"context"
	"fmt"

	"cascadekv/dht/fabric"
)

// callSelf answers this rank's own call. The handler may take longer than the
// caller waits, so it gets a copy of the request.
func (f *Fabric) callSelf(ctx context.Context, req []byte) ([]byte, error) {
	type result struct {
		body []byte
		err  error
	}
	done := make(chan result, 1)
	handler := f.enter()
	if handler == nil {
		f.leave()
		return nil, f.unserved()
	}
	req = bytes.Clone(req)
	go func() {
		defer f.leave()
		ctx, cancel := context.WithCancel(ctx)
		defer context.AfterFunc(f.life, cancel)()
		defer cancel()
		body, err := handler.Answer(ctx, f.self, req)
		done <- result{body, err}
	}()
	select {
	case <-f.life.Done():
		return nil, fabric.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		if r.err != nil && f.life.Err() != nil {
			return nil, fabric.ErrClosed
		}
		if r.err != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if r.err == nil && len(r.body) > fabric.MaxMessage {
			return nil, fabric.ErrTooLarge
		}
		if r.err != nil {
			s, text := statusOf(r.err)
			return nil, s.err(f.self, text)
		}
		return r.body, nil
	}
}

// unserved is why there is no handler.
func (f *Fabric) unserved() error {
	if f.closing.Load() {
		return fabric.ErrClosed
	}
	return fmt.Errorf("%w: it does not serve yet", fabric.ErrUnreachable)
}

// readSelf copies within this rank, in pieces so that deadlines count.
func (f *Fabric) readSelf(ctx context.Context, src fabric.Source, dst []byte) error {
	defer f.leave()
	handler := f.enter()
	if handler == nil {
		return f.unserved()
	}
	hold, err := handler.Hold(src)
	if err != nil {
		s, text := statusOf(err)
		return s.err(f.self, text)
	}
	defer hold.Release()
	if len(hold.Bytes()) != len(dst) {
		return fmt.Errorf("the handler holds %d bytes", len(hold.Bytes()))
	}
	const piece = 1 << 20
	for done := 0; done < len(dst); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.closing.Load() {
			return fabric.ErrClosed
		}
		done += copy(dst[done:min(done+piece, len(dst))], hold.Bytes()[done:])
	}
	return nil
}
