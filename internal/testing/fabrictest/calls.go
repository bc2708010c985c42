package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

func (s *suite) identity(t *testing.T) {
	if s.Fabric.Name() == "" {
		t.Error("the fabric has no name")
	}
	for _, p := range s.Peers {
		if p.Rank == s.Fabric.Self() {
			t.Errorf("Self is %v, which is a peer", p.Rank)
		}
	}
	if err := s.Fabric.Serve(s.self); err == nil {
		t.Error("a second Serve succeeded")
	}
}

func (s *suite) echo(t *testing.T) {
	for _, r := range s.remotes() {
		for _, n := range []int{0, 1, 2, 17, 255, 4096, 65535, 65536, 65537, 300_000, fabric.MaxMessage - 1, fabric.MaxMessage} {
			req := message(n)
			got, err := s.Fabric.Call(s.context(t, patience), r.Rank, req)
			if err != nil || !bytes.Equal(got, req) {
				t.Fatalf("echo of %d bytes by %v: %d bytes, error %v", n, r.Rank, len(got), err)
			}
			for i := range req { // the answer is the caller's: it shares nothing with req
				req[i] ^= 0xFF
			}
			if !bytes.Equal(got, message(n)) {
				t.Fatalf("the answer of %d bytes by %v is the request's memory", n, r.Rank)
			}
		}
	}
}

// message is a request of n bytes that is answered as it is.
func message(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8(key(uint64(n))).Read(b)
	if n > 0 {
		b[0] = opEcho
	}
	return b
}

func (s *suite) tooLarge(t *testing.T) {
	for _, r := range s.remotes() {
		_, err := s.Fabric.Call(s.context(t, patience), r.Rank, message(fabric.MaxMessage+1))
		wantErr(t, "a request above MaxMessage", err, fabric.ErrTooLarge)

		_, err = r.command(s.context(t, patience), opLong, fabric.MaxMessage+1, 0)
		if _, remote := errors.AsType[*fabric.RemoteError](err); !remote && !errors.Is(err, fabric.ErrTooLarge) {
			t.Errorf("an answer above MaxMessage: error %v, want ErrTooLarge or a RemoteError", err)
		}
		got, err := r.command(s.context(t, patience), opLong, fabric.MaxMessage, 0)
		if err != nil || len(got) != fabric.MaxMessage {
			t.Errorf("an answer of MaxMessage: %d bytes, error %v", len(got), err)
		}
	}
}

func (s *suite) remoteError(t *testing.T) {
	for _, r := range s.remotes() {
		_, err := r.command(s.context(t, patience), opFail, 0, 0)
		re, ok := errors.AsType[*fabric.RemoteError](err)
		if !ok || re.Peer != r.Rank || re.Text != failure {
			t.Errorf("an error of %v's handler came as %v", r.Rank, err)
		}
	}
}

func (s *suite) unknownPeer(t *testing.T) {
	const nobody = 1 << 20
	_, err := s.Fabric.Call(s.context(t, patience), nobody, nil)
	wantErr(t, "call of a rank that is not there", err, fabric.ErrUnreachable)
	err = s.Fabric.Read(s.context(t, patience), nobody, fabric.Source{Length: 1}, s.target(t, 1).dst)
	wantErr(t, "read from a rank that is not there", err, fabric.ErrUnreachable)
	if !strings.Contains(err.Error(), fabric.Rank(nobody).String()) {
		t.Errorf("the error %q does not name the peer", err)
	}
}

func (s *suite) callDeadline(t *testing.T) {
	const limit = 150 * time.Millisecond
	for _, r := range s.remotes() {
		left, err := r.Remaining(s.context(t, 20*time.Second))
		if err != nil || left <= 0 || left > 20*time.Second {
			t.Errorf("%v's handler has %v of 20s left, error %v", r.Rank, left, err)
		}
		before := runtime.NumGoroutine()
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				wantErr(t, "a call that takes too long", r.Sleep(ctx, 4*time.Second), context.DeadlineExceeded)
				if took := time.Since(start); took < limit || took > 10*limit {
					t.Errorf("a call of %v with a deadline of %v took %v", r.Rank, limit, took)
				}
			})
		}
		calls.Wait()
		s.goroutines(t, before)

		gone, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		_, err = s.Fabric.Call(gone, r.Rank, message(5))
		wantErr(t, "a call after its deadline", err, context.DeadlineExceeded)
	}
}

func (s *suite) callCancel(t *testing.T) {
	for _, r := range s.remotes() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		time.AfterFunc(20*time.Millisecond, cancel)
		wantErr(t, "a call that is canceled", r.Sleep(ctx, 4*time.Second), context.Canceled)
		_, err := s.Fabric.Call(ctx, r.Rank, message(5))
		wantErr(t, "a call that was canceled before", err, context.Canceled)
		if _, err := s.Fabric.Call(s.context(t, patience), r.Rank, message(5)); err != nil {
			t.Errorf("a call after a canceled one: %v", err)
		}
	}
}

// concurrent mixes calls and reads of all sizes to all ranks.
func (s *suite) concurrent(t *testing.T) {
	const callers, rounds = 32, 24
	type held struct {
		r    Remote
		src  fabric.Source
		seed uint64
	}
	var blocks []held
	for i, r := range s.remotes() {
		for j, n := range []int64{1, 4096, 100_001, 2 << 20} {
			seed := uint64(100*i + j)
			blocks = append(blocks, held{r, s.put(t, r, n, seed), seed})
		}
	}
	ctx := s.context(t, patience)
	var all sync.WaitGroup
	for c := range callers {
		g := s.target(t, 2<<20)
		rng := rand.New(rand.NewPCG(uint64(c), 1))
		all.Go(func() {
			for range rounds {
				if b := blocks[rng.IntN(len(blocks))]; rng.IntN(2) == 0 {
					dst := g.dst[:b.src.Length]
					if err := s.Fabric.Read(ctx, b.r.Rank, b.src, dst); err != nil {
						t.Errorf("Read of %+v from %v: %v", b.src, b.r.Rank, err)
					} else if err := Check(dst, b.seed, 0); err != nil {
						t.Errorf("Read of %+v from %v: %v", b.src, b.r.Rank, err)
					}
					continue
				}
				req := message(rng.IntN(1 << rng.IntN(18)))
				to := s.ranks[rng.IntN(len(s.ranks))]
				if got, err := s.Fabric.Call(ctx, to, req); err != nil || !bytes.Equal(got, req) {
					t.Errorf("echo of %d bytes by %v: %d bytes, error %v", len(req), to, len(got), err)
				}
			}
			if !g.intact() {
				t.Error("a read wrote outside dst")
			}
		})
	}
	all.Wait()
	for _, b := range blocks {
		s.evict(t, b.r, b.src)
	}
}
