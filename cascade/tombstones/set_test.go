package tombstones

import (
	"testing"
	"time"

	"cascadekv/internal/block"
)

var begin = time.Unix(1_800_000_000, 0)

func name(ns, key string, seq uint64) *block.Name {
	return &block.Name{Namespace: ns, Key: key, Seq: seq}
}

func TestWhatIsBelowIsInvalid(t *testing.T) {
	s := New()
	if !s.Add("ns", "a", 10) || s.Add("ns", "a", 10) || s.Add("ns", "a", 9) || !s.Add("ns", "a", 12) {
		t.Error("what is more than before")
	}
	c := NewClearing("other", false, 20)
	s.AddClearing(c)
	for _, x := range []struct {
		name *block.Name
		want bool
	}{
		{name("ns", "a", 11), true}, {name("ns", "a", 12), false}, {name("ns", "b", 1), false},
		{name("other", "b", 19), true}, {name("other", "b", 20), false},
	} {
		if s.Has(x.name) != x.want {
			t.Errorf("%+v is invalid: %v", x.name, !x.want)
		}
	}
	s.Cleared(c, begin)
	if s.Sweep(begin.Add(keepFor - 1)); !s.Has(name("other", "b", 19)) || s.Has(name("other", "b", 20)) || s.Clearing() != nil {
		t.Error("who found it before may be about to ask for it")
	}
	if s.Sweep(begin.Add(keepFor)); s.Has(name("other", "b", 19)) {
		t.Error("cleared long ago and still invalid")
	}
	if s.AddClearing(NewClearing("", true, 30)); !s.Has(name("other", "b", 19)) || s.Clearing() == nil {
		t.Error("not everything is cleared")
	}
}

// A name stays invalid while the catalogue withdraws it and for a time after that;
// one that is added again meanwhile is withdrawn again.
func TestQueue(t *testing.T) {
	s := New()
	for _, k := range []string{"a", "b", "c", "a"} {
		s.Add("ns", k, 10)
	}
	first := s.Queued(2)
	if len(first) != 2 || first[0].Key != "a" || first[1].Key != "b" || first[0].Seq != 10 {
		t.Fatalf("queued: %+v", first)
	}
	s.Add("ns", "b", 15)
	if !s.Flushed(first, begin) {
		t.Error("c is left")
	}
	rest := s.Queued(9)
	if len(rest) != 2 || rest[0].Key != "c" || rest[1].Key != "b" || rest[1].Seq != 15 {
		t.Fatalf("queued: %+v", rest)
	}
	if s.Flushed(rest, begin.Add(time.Second)) {
		t.Error("nothing is left")
	}
	if s.Sweep(begin.Add(keepFor - 1)); !s.Has(name("ns", "a", 9)) {
		t.Error("forgotten before its time")
	}
	if s.Sweep(begin.Add(keepFor)); s.Has(name("ns", "a", 9)) || !s.Has(name("ns", "b", 9)) {
		t.Error("a is to be forgotten, b not yet")
	}
	if s.Add("ns", "c", 11); len(s.Queued(9)) != 1 {
		t.Error("c is not withdrawn again")
	}
}
