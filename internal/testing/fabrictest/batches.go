package fabrictest

import (
	"context"
	"errors"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// batched is one read of a batch, and how it should end.
type batched struct {
	src   fabric.Source
	g     *target
	seed  uint64
	stale bool
}

// readBatch reads blocks of many sizes together, of which some are stale: each is
// right or stale by itself, wherever it stands in the batch.
func (s *suite) readBatch(t *testing.T) {
	sizes := []int64{4096, 0, 1, 70_001, 4096, 3 << 20, 25, 4096}
	for _, r := range s.remotes() {
		for _, n := range []int{1, 2, 7, fabric.MaxBatch} {
			for gone := range 4 { // every one, none, every second, every third
				s.free = 0
				all := make([]batched, n)
				for i := range all {
					b := &all[i]
					size := sizes[i%len(sizes)]
					b.seed = uint64(10*n + i)
					b.src, b.g = s.put(t, r, size, b.seed), s.target(t, size)
					if b.stale = gone != 1 && i%max(gone, 1) == 0; b.stale {
						s.evict(t, r, b.src)
					}
				}
				s.readTogether(t, r, all)
				for _, b := range all {
					if !b.stale {
						s.evict(t, r, b.src)
					}
				}
			}
		}
	}
}

// readTogether reads a batch and checks every part of it.
func (s *suite) readTogether(t *testing.T, r Remote, all []batched) {
	t.Helper()
	reads := make([]fabric.Read, len(all))
	for i, b := range all {
		reads[i] = fabric.Read{Source: b.src, Dst: b.g.dst, Err: errors.New("not read")}
	}
	fabric.ReadBatch(s.context(t, patience), s.Fabric, r.Rank, reads)
	for i, b := range all {
		err := reads[i].Err
		if b.stale {
			wantErr(t, "a stale part of a batch", err, fabric.ErrStale)
			err = Settled(s.context(t, patience), err)
		} else if err == nil {
			err = Check(b.g.dst, b.seed, 0)
		}
		if err != nil {
			t.Errorf("part %d of %d from %v, %d bytes, stale %v: %v", i, len(all), r.Rank, b.src.Length, b.stale, err)
		}
		if !b.g.intact() {
			t.Errorf("part %d of %d from %v wrote outside dst", i, len(all), r.Rank)
		}
	}
}

// readBatchDeadline lets batches run out of time at many points: what is answered
// is right, and nothing is written later.
func (s *suite) readBatchDeadline(t *testing.T) {
	const n, size = 16, 1 << 20
	r := s.far()
	s.free = 0
	all := make([]batched, n)
	for i := range all {
		all[i] = batched{src: s.put(t, r, size, uint64(i)), g: s.target(t, size), seed: uint64(i)}
	}
	for limit := 50 * time.Microsecond; limit < 40*time.Millisecond; limit = limit * 5 / 3 {
		reads := make([]fabric.Read, n)
		for i, b := range all {
			reads[i] = fabric.Read{Source: b.src, Dst: b.g.dst}
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		fabric.ReadBatch(ctx, s.Fabric, r.Rank, reads)
		cancel()
		for i, b := range all {
			if err := reads[i].Err; err == nil {
				if err := Check(b.g.dst, b.seed, 0); err != nil {
					t.Errorf("part %d of a batch that takes too long: %v", i, err)
				}
			} else {
				wantErr(t, "a part of a batch that takes too long", err, context.DeadlineExceeded)
				if err := Settled(s.context(t, patience), err); err != nil {
					t.Fatal(err)
				}
			}
			b.g.reset()
		}
		time.Sleep(3 * time.Millisecond)
		for i, b := range all {
			if b.g.dst[0] != guarded || b.g.dst[size/2] != guarded || b.g.dst[size-1] != guarded {
				t.Fatalf("dst of part %d was written after the batch had returned", i)
			}
		}
	}
	s.readTogether(t, r, all)
	for _, b := range all {
		s.evict(t, r, b.src)
	}
}
