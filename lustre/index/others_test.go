package index

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// TestMoreOthersThanFit: of a name with records in many segments it is never known that it
// hides nothing, and of one with few it is once they are gone.
func TestMoreOthersThanFit(t *testing.T) {
	x := open(t, memOptions())
	at := func(n uint64) Segment { return Segment{Rank: uint32(n), Incarnation: 7, File: n} }
	for _, c := range []struct {
		key, others uint64
		hides       bool
	}{{1, maxOthers, false}, {2, maxOthers + 1, true}} {
		for n := range c.others + 1 {
			put(t, x, Batch{Segment: at(100*c.key + n), Names: []Name{{Key: key(c.key), Seq: n + 1, Dropped: n == c.others}}})
		}
		peek := func() bool {
			var e [1]Entry
			if _, err := x.PeekBatch(keys(c.key), e[:]); err != nil || !e[0].Name.Dropped {
				t.Fatal(e, err)
			}
			return e[0].Name.Hides
		}
		for n := range c.others {
			if !peek() {
				t.Errorf("%d of %d segments are there, and it hides nothing", c.others-n, c.others)
			}
			if err := x.DeleteSegment(context.Background(), at(100*c.key+n)); err != nil {
				t.Fatal(err)
			}
		}
		if peek() != c.hides {
			t.Errorf("after %d segments: want %v", c.others, c.hides)
		}
	}
}

// TestOthers: what is cut or in no order is refused.
func TestOthers(t *testing.T) {
	good := []byte{2, 4, 0, 0, 0, 0, 1, 0, 0, 'n'}
	if o, rest, err := cutOthers(good); err != nil || !slices.Equal(o, good[1:9]) || string(rest) != "n" {
		t.Errorf("% x, %q, %v", o, rest, err)
	}
	for _, bad := range [][]byte{{}, good[:5], {maxOthers + 1}, {2, 4, 0, 0, 0, 4, 0, 0, 0}, {2, 0, 1, 0, 0, 4, 0, 0, 0}} {
		if _, _, err := cutOthers(bad); !errors.Is(err, ErrBadFormat) {
			t.Errorf("% x: %v", bad, err)
		}
	}
}
