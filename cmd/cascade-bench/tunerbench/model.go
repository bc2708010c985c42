package tunerbench

import (
	"context"

	"cascadekv/lustre/tuner"
)

// model is a Target made of the cost model alone: it holds nothing,
// and counts what an index would do and what that would cost in pages.
type model struct {
	tree    tuner.Tree
	setting tuner.Setting
	pages   float64
}

// openModel ignores its context: nothing in it can wait.
func openModel(_ context.Context, shape tuner.Shape, s tuner.Setting, warm int64, blocks int) (Target, error) {
	return &model{tree: tuner.Tree{Shape: shape, Entries: warm * int64(blocks)}, setting: s}, nil
}

// Serve is SGLang-LSM's appendix B: the longest head by binary search with
// point lookups, its entries by one range scan, the rest by a batch of puts.
func (m *model) Serve(_ context.Context, r Request) (tuner.Counts, error) {
	c := binarySearch(r.Blocks, r.Cached)
	if r.Cached > 0 {
		c.Ranges, c.Scanned = 1, uint64(r.Cached)
	}
	c.Puts = uint64(r.Blocks - r.Cached)
	cost := m.tree.Costs(m.setting, float64(c.Scanned))
	m.pages += float64(c.Puts)*cost.Put + float64(c.Hits)*cost.Hit + float64(c.Ranges)*cost.Range + float64(c.Misses)*cost.Miss
	m.tree.Entries += int64(c.Puts)
	return c, nil
}

// binarySearch counts the lookups that find how many of n blocks, from the
// first on, are stored, when it is so many.
func binarySearch(n, stored int) (c tuner.Counts) {
	low, high := 0, n // the answer lies within
	for low < high {
		if middle := (low + high + 1) / 2; middle <= stored {
			c.Hits++
			low = middle
		} else {
			c.Misses++
			high = middle - 1
		}
	}
	return c
}

func (m *model) Retune(_ context.Context, s tuner.Setting) error {
	m.setting = s
	return nil
}

func (m *model) Cost() float64    { return m.pages }
func (m *model) Tree() tuner.Tree { return m.tree }
func (m *model) Close() error     { return nil }
