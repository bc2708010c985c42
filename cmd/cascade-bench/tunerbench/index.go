package tunerbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"cascadekv/cmd/cascade-bench/indexbench"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/tuner"
)

// indexTarget is a Target that is an index of segments, in a directory of
// its own. Its cost is the seconds that Serve and Retune took.
type indexTarget struct {
	x     *index.Index
	dir   string
	spent time.Duration
	file  uint64 // of the next segment

	chain []index.Key
}

// openIndex makes an index below dir with a cache of so many bytes, loads
// warm chains of blocks entries each, and waits until it rests.
func openIndex(ctx context.Context, dir string, cache int64, s tuner.Setting, warm int64, blocks int) (*indexTarget, error) {
	dir, err := os.MkdirTemp(dir, "cascade-bench-tuner-*")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	t := &indexTarget{dir: dir}
	io := index.Options{Dir: dir, Campaign: "bench", CacheBytes: cache, SizeRatio: s.T, Runs: s.K}
	t.x, err = index.Open(io)
	if err == nil {
		err = t.x.Load(ctx, func(yield func(index.Batch, error) bool) {
			const chains = 16 // in a segment
			for c := int64(0); c < warm; c += chains {
				b := t.begin()
				for i := c; i < min(c+chains, warm); i++ {
					t.add(&b, i, 0, blocks)
				}
				if !yield(b, nil) {
					return
				}
			}
		})
	}
	if err == nil {
		err = t.settle(ctx)
	}
	if err == nil {
		err = t.x.Close() // so that a change of shape, which reopens, starts from what both sides have
	}
	if err == nil {
		t.x, err = index.Open(io)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// hashOf spreads the numbers of chains and blocks over all hashes.
func hashOf(chain int64, i int) (h [16]byte) {
	mix := func(z uint64) uint64 { // the finalizer of SplitMix64
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	n := uint64(chain)<<20 | uint64(i)
	binary.BigEndian.PutUint64(h[:], mix(n+0x9e3779b97f4a7c15))
	binary.BigEndian.PutUint64(h[8:], mix(n^0xd1342543de82ef95))
	return h
}

// begin is a batch of the next segment.
func (t *indexTarget) begin() index.Batch {
	t.file++
	return index.Batch{Segment: index.Segment{Rank: 1, Incarnation: 1, File: t.file}, Mark: 1}
}

// add puts blocks from to to of a chain into a batch.
func (t *indexTarget) add(b *index.Batch, chain int64, from, to int) {
	for i := from; i < to; i++ {
		h := hashOf(chain, i)
		var id block.ID
		binary.BigEndian.PutUint64(id[:], binary.BigEndian.Uint64(h[8:]))
		copy(id[8:], h[:8])
		at := int64(4096 + len(b.Blocks)*160)
		b.Blocks = append(b.Blocks, index.Block{
			Info:  block.Info{ID: id, Size: indexbench.BlockBytes, CRC: uint32(i)},
			Place: index.Place{Offset: at + indexbench.BlockBytes, Stored: indexbench.BlockBytes, StoredCRC: uint32(i)},
		})
		n := index.Name{Key: h, ID: id, Depth: uint32(i), Seq: t.file}
		if i > 0 {
			n.Parent = hashOf(chain, i-1)
		}
		b.Names = append(b.Names, n)
	}
}

// Serve implements Target. A request that shares nothing is a chain of its
// own, as is one that shares all of it: what is cached is chain Prefix alone.
func (t *indexTarget) Serve(ctx context.Context, r Request) (c tuner.Counts, err error) {
	t.chain = t.chain[:0]
	for i := range r.Blocks {
		if i < r.Cached {
			t.chain = append(t.chain, hashOf(r.Prefix, i))
		} else {
			t.chain = append(t.chain, hashOf(r.Sequence, i))
		}
	}
	var b index.Batch
	if r.Cached < r.Blocks {
		b = t.begin()
		t.add(&b, r.Sequence, r.Cached, r.Blocks)
		if r.Cached > 0 {
			b.Names[0].Parent = hashOf(r.Prefix, r.Cached-1)
		}
	}
	began := time.Now()
	n := 0
	err = t.x.Probe(t.chain, func(_ int, p *index.Presence) bool {
		if p != nil {
			n++
		}
		return p != nil
	})
	if err == nil && r.Cached < r.Blocks {
		err = t.x.PutBatch(ctx, b)
	}
	t.spent += time.Since(began)
	if err == nil && n != r.Cached {
		err = fmt.Errorf("%w: of a chain of %d blocks are %d there, not %d", kit.ErrWrong, r.Blocks, n, r.Cached)
	}
	switch {
	case n > 1:
		c.Ranges, c.Scanned = 1, uint64(n)
	case n == 1:
		c.Hits = 1
	}
	if n < r.Blocks {
		c.Misses = 1
	}
	c.Puts = uint64(len(b.Blocks) + len(b.Names))
	return c, err
}

// Retune implements Target.
func (t *indexTarget) Retune(ctx context.Context, s tuner.Setting) error {
	began := time.Now()
	defer func() { t.spent += time.Since(began) }()
	return t.x.Retune(ctx, s.T, s.K)
}

// Cost implements Target: seconds.
func (t *indexTarget) Cost() float64 { return t.spent.Seconds() }

// Tree implements Target.
func (t *indexTarget) Tree() tuner.Tree {
	s := t.x.Stats()
	tree := tuner.Tree{Shape: tuner.Pebble, Entries: int64(s.Entries)}
	bytes := int64(0)
	for _, l := range s.Levels {
		bytes += l.Bytes
	}
	if s.Entries > 0 && bytes > 0 {
		tree.EntryBytes = float64(bytes) / float64(s.Entries)
	}
	return tree
}

// settle writes what is in memory and waits until the index rests.
func (t *indexTarget) settle(ctx context.Context) error {
	if err := t.x.Sync(ctx); err != nil {
		return err
	}
	return indexbench.Rest(ctx, t.x, 100*time.Millisecond, 10*time.Second)
}

// Close implements Target.
func (t *indexTarget) Close() (err error) {
	if t.x != nil {
		err = t.x.Close()
	}
	return errors.Join(err, os.RemoveAll(t.dir))
}
