package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

func (s *suite) readSizes(t *testing.T) {
	for _, r := range s.two() {
		for seed, n := range []int64{0, 1, 7, 4095, 4096, 65_537, 256 << 10, 1<<20 + 1, 4 << 20, maxBlock} {
			s.free = 0
			src := s.put(t, r, n, uint64(seed))
			s.read(t, r, src, s.target(t, n), uint64(seed), 0)
			s.evict(t, r, src)
		}
	}
}

func (s *suite) readPart(t *testing.T) {
	for _, r := range s.remotes() {
		src := s.put(t, r, 1<<20, 5)
		for _, part := range [][2]int64{{0, 1}, {1, 1}, {1<<20 - 1, 1}, {4097, 70_000}, {1 << 19, 1 << 19}} {
			p := src
			p.Offset, p.Length = src.Offset+part[0], part[1]
			s.read(t, r, p, s.target(t, p.Length), 5, part[0])
		}
		s.evict(t, r, src)
	}
}

func (s *suite) readStale(t *testing.T) {
	for _, r := range s.remotes() {
		for _, n := range []int64{1, 4 << 20} {
			old := s.put(t, r, n, 1)
			s.evict(t, r, old)
			now := s.put(t, r, n, 2) // likely in the same place
			g := s.target(t, n)
			s.readFails(t, r, old, g, fabric.ErrStale)
			g.reset()
			s.read(t, r, now, g, 2, 0)
			s.evict(t, r, now)
		}
	}
}

// readFails reads what can not be read, and waits until g is free again.
func (s *suite) readFails(t *testing.T, r Remote, src fabric.Source, g *target, want error) {
	t.Helper()
	err := s.Fabric.Read(s.context(t, patience), r.Rank, src, g.dst)
	wantErr(t, "Read", err, want)
	if err := Settled(s.context(t, patience), err); err != nil {
		t.Fatal(err)
	}
	if !g.intact() {
		t.Errorf("a Read that failed (%v) wrote outside dst", err)
	}
}

func (s *suite) readWrong(t *testing.T) {
	for _, r := range s.remotes() {
		const n = 5000
		src := s.put(t, r, n, 3)
		g := s.target(t, n)
		for _, change := range []func(*fabric.Source){
			func(p *fabric.Source) { p.Region++ },
			func(p *fabric.Source) { p.Region = math.MaxUint32 },
			func(p *fabric.Source) { p.Offset++ },
			func(p *fabric.Source) { p.Offset-- },
			func(p *fabric.Source) { p.Offset = math.MaxInt64 },
			func(p *fabric.Source) { p.Offset = math.MinInt64 },
			func(p *fabric.Source) { p.Generation++ },
			func(p *fabric.Source) { p.Generation = 0 },
		} {
			wrong := src
			change(&wrong)
			s.readFails(t, r, wrong, g, fabric.ErrStale)
		}
		g.reset()
		s.read(t, r, src, g, 3, 0)
		s.evict(t, r, src)
	}
}

func (s *suite) readWrongLength(t *testing.T) {
	for _, r := range s.remotes() {
		src := s.put(t, r, 5000, 3)
		for _, n := range []int64{0, 4999, 5001} {
			if err := s.Fabric.Read(s.context(t, patience), r.Rank, src, s.target(t, n).dst); err == nil {
				t.Errorf("a Read of 5000 bytes into %d succeeded", n)
			}
		}
		wrong := src
		wrong.Length = -1
		if err := s.Fabric.Read(s.context(t, patience), r.Rank, wrong, nil); err == nil {
			t.Error("a Read of -1 bytes succeeded")
		}
		s.evict(t, r, src)
	}
}

// readDeadline lets reads run out of time at many points, and checks that
// their memory is then left alone.
func (s *suite) readDeadline(t *testing.T) {
	const slow = 24 << 20
	for _, r := range s.two() {
		src := s.put(t, r, slow, 9)
		s.free = 0
		g := s.target(t, slow)
		for limit := 50 * time.Microsecond; limit < 60*time.Millisecond; limit = limit * 5 / 3 {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err := s.Fabric.Read(ctx, r.Rank, src, g.dst)
			cancel()
			if err == nil {
				continue
			}
			wantErr(t, "a read that takes too long", err, context.DeadlineExceeded)
			if err := Settled(s.context(t, patience), err); err != nil {
				t.Fatal(err)
			}
			g.reset()
			time.Sleep(3 * time.Millisecond)
			if n := len(g.whole) - bytes.Count(g.whole, []byte{guarded}); n > 0 {
				t.Fatalf("%d bytes of dst were written after the Read had returned", n)
			}
		}
		gone, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		err := s.Fabric.Read(gone, r.Rank, src, g.dst)
		cancel()
		wantErr(t, "a read after its deadline", err, context.DeadlineExceeded)
		s.read(t, r, src, g, 9, 0)
		s.evict(t, r, src)
	}
}

func (s *suite) evictHeld(t *testing.T) {
	for _, r := range s.remotes() {
		src := s.put(t, r, 4<<20, 4)
		if err := r.EvictHeld(s.context(t, patience), src); err != nil {
			t.Fatal(err)
		}
		g := s.target(t, src.Length)
		// Whether a fabric notices before its last byte is its own affair.
		if err := s.Fabric.Read(s.context(t, patience), r.Rank, src, g.dst); err == nil {
			if err := Check(g.dst, 4, 0); err != nil {
				t.Errorf("a block was evicted while held: %v", err)
			}
		} else {
			wantErr(t, "a block was evicted while held", err, fabric.ErrStale)
		}
		s.eventually(t, "the eviction is seen", func() bool {
			err := s.Fabric.Read(s.context(t, patience), r.Rank, src, g.dst)
			if err == nil { // a fabric that holds nothing: the peer did not notice
				s.evict(t, r, src)
			}
			return errors.Is(err, fabric.ErrStale)
		}, func() any { return src })
	}
}

// evictUnderReads evicts blocks at all points of reads of them: a read is
// right or stale.
func (s *suite) evictUnderReads(t *testing.T) {
	const readers, size = 3, 3 << 20
	for _, r := range s.two() {
		s.free = 0
		var dst []*target
		for range readers {
			dst = append(dst, s.target(t, size))
		}
		for round := range 10 {
			seed := uint64(1000 + round)
			src := s.put(t, r, size, seed)
			var reads sync.WaitGroup
			for _, g := range dst {
				reads.Go(func() {
					for s.rightOrStale(t, r, src, g, seed) {
					}
				})
			}
			time.Sleep(time.Duration(round) * 350 * time.Microsecond)
			s.evict(t, r, src)
			s.readFails(t, r, src, s.target(t, size), fabric.ErrStale)
			s.free -= size + 2*guard + 1
			reads.Wait()
		}
	}
}

// rightOrStale reads once and reports whether the block was still there.
func (s *suite) rightOrStale(t *testing.T, r Remote, src fabric.Source, g *target, seed uint64) bool {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := s.Fabric.Read(ctx, r.Rank, src, g.dst)
	if err != nil {
		wantErr(t, "a read of a block that is evicted", err, fabric.ErrStale)
		if err := Settled(ctx, err); err != nil {
			t.Error(err)
		}
		return false
	}
	if err := Check(g.dst, seed, 0); err != nil {
		t.Errorf("a block was evicted under the read: %v", err)
		return false
	}
	return true
}
