package tcp

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// echo answers requests that begin with q quickly, with what it was asked, and others
// when they are let go on.
type echo struct {
	goOn  chan struct{}
	quick atomic.Int64
}

func (e *echo) Quick(req []byte) bool { return req[0] == 'q' }

func (e *echo) Answer(ctx context.Context, _ fabric.Rank, req []byte) ([]byte, error) {
	if req[0] == 'q' {
		e.quick.Add(1)
		if len(req) > 1 && req[1] == '!' {
			return nil, errors.New("refused")
		}
		return bytes.Clone(req), nil
	}
	select {
	case <-e.goOn:
		return bytes.Clone(req), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *echo) Hold(fabric.Source) (fabric.Hold, error) { return nil, fabric.ErrStale }

// Quick answers overtake those that wait, of whatever length they are, and errors travel.
func TestQuickAnswers(t *testing.T) {
	e := &echo{goOn: make(chan struct{})}
	server := start(t, options(1, 1))
	if err := server.Serve(e); err != nil {
		t.Fatal(err)
	}
	f := start(t, options(0, 1))
	f.SetPeer(as(server))
	slow := make(chan error)
	go func() {
		answer, err := f.Call(soon(t), 1, []byte("slow"))
		if err == nil && string(answer) != "slow" {
			err = errors.New("another answer")
		}
		slow <- err
	}()
	for i, n := range []int{2, 100, bufferSize - headerSize, bufferSize, bufferSize + 1, 300 << 10} {
		req := bytes.Repeat([]byte{'q'}, n)
		req[n-1] = byte(i)
		if answer, err := f.Call(soon(t), 1, req); err != nil || !bytes.Equal(answer, req) {
			t.Errorf("%d bytes: %d came back, error %v", n, len(answer), err)
		}
		if _, err := f.Call(soon(t), 1, []byte("q!")); err == nil || !isRemote(err) {
			t.Errorf("error %v, want the handler's", err)
		}
	}
	if e.quick.Load() == 0 {
		t.Error("none was quick")
	}
	select {
	case err := <-slow:
		t.Fatalf("the slow one was answered early: %v", err)
	default:
	}
	close(e.goOn)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := f.Call(ctx, 1, []byte("q")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
}

func isRemote(err error) bool {
	_, ok := errors.AsType[*fabric.RemoteError](err)
	return ok
}
