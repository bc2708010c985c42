package layouts

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// records is a Recorder in memory.
type records map[string]declaration

func (r records) SetLayout(ns string, seq uint64, l block.Layout) error {
	r[ns] = declaration{seq, l}
	return nil
}

func (r records) Layout(ns string) (uint64, block.Layout) { return r[ns].seq, r[ns].layout }

func TestNewestCounts(t *testing.T) {
	now := time.Unix(100, 0)
	r := records{}
	b := New(func() time.Time { return now }, r, refusing{})
	first, second, third := block.Layout{Tokens: 1}, block.Layout{Tokens: 2}, block.Layout{Tokens: 3}
	if l := b.Of("ns"); !l.IsZero() {
		t.Errorf("%+v before anybody declared it", l)
	}
	if err := b.Set("ns", first); err != nil || b.Of("ns") != first || r["ns"].layout != first {
		t.Fatalf("%v, %+v on record", err, r)
	}
	r["ns"] = declaration{uint64(now.UnixNano()) + 1000, second} // of another rank's segment
	if b.Of("ns") != second {
		t.Errorf("an older one counts: %+v", b.Of("ns"))
	}
	was := r["ns"]
	if err := b.Set("ns", second); err != nil || r["ns"] != was {
		t.Errorf("the same declared again is recorded again: %+v, %v", r["ns"], err)
	}
	if err := b.Set("ns", third); err != nil || r["ns"].seq <= was.seq || b.Of("ns") != third {
		t.Errorf("a clock that is behind: %+v, %v", r["ns"], err)
	}
	if err := b.Set("ns", block.Layout{Bytes: 1, KeyBytes: 2}); !errors.Is(err, block.ErrBadLayout) || b.Of("ns") != third {
		t.Errorf("a bad one: %v", err)
	}
}

// refusing is a recorder without room.
type refusing struct{}

var errRefused = errors.New("no room")

func (refusing) SetLayout(string, uint64, block.Layout) error { return errRefused }

func (refusing) Layout(string) (uint64, block.Layout) { return 0, block.Layout{} }

func TestRecorders(t *testing.T) {
	l := block.Layout{Tokens: 1}
	b := New(time.Now, refusing{}, refusing{})
	if err := b.Set("ns", l); !errors.Is(err, errRefused) || b.Of("ns") != l {
		t.Errorf("nobody recorded it: %v, %v", err, b.Of("ns"))
	}
	first, second := records{"ns": {5, l}}, records{}
	b = New(time.Now, first, second)
	b.Share([]string{"ns", "other"})
	if len(second) != 1 || second["ns"] != first["ns"] {
		t.Errorf("one recorder has %v, the other %v", first, second)
	}
	delete(second, "ns")
	if err := b.Set("ns", l); err != nil || second["ns"] != first["ns"] {
		t.Errorf("the same declared again: %v, %v", second, err)
	}
}

func TestNamespacesAreBounded(t *testing.T) {
	b := New(time.Now)
	for i := range MaxNamespaces {
		if err := b.Set(fmt.Sprint(i), block.Layout{Tokens: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Set("one more", block.Layout{Tokens: 1}); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	if err := b.Set("5", block.Layout{Tokens: 2}); err != nil || b.Of("5").Tokens != 2 {
		t.Error(err)
	}
}
