package inference

import (
	"fmt"
	"strings"
	"testing"
)

func chain(name string, from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, fmt.Sprint(name, i))
	}
	return keys
}

func TestOrders(t *testing.T) {
	var o Orders
	if o.Parent("ns", "a1") != "" {
		t.Error("nothing was seen")
	}
	if !Asked(&o, "ns", chain("a", 0, 10)) || Asked(&o, "ns", chain("a", 0, 10)) || !Asked(&o, "ns", chain("a", 5, 12)) {
		t.Error("what is news is not told")
	}
	if Asked(&o, "ns", []string{"alone"}) || Asked[string](&o, "ns", nil) || Asked(&o, "ns", []string{"twice", "twice"}) {
		t.Error("no order is news")
	}
	bytes := make([][]byte, 3)
	for i, k := range chain("b", 0, 3) {
		bytes[i] = []byte(k)
	}
	Asked(&o, "ns", bytes)
	bytes[1][0] = 'x' // it is the caller's
	for key, want := range map[string]string{
		"a0": "", "a1": "a0", "a11": "a10", "b1": "b0", "b2": "b1", "alone": "", "twice": "",
	} {
		if got := o.Parent("ns", key); got != want {
			t.Errorf("before %s comes %q, want %q", key, got, want)
		}
		if got := o.Parent("other", key); got != "" {
			t.Errorf("in another namespace before %s comes %q", key, got)
		}
	}
}

// TestRefuted: a key that comes after two others stands for no prefix.
func TestRefuted(t *testing.T) {
	var o Orders
	Asked(&o, "ns", []string{"a", "b", "c"})
	Asked(&o, "ns", []string{"x", "b", "d"})
	Asked(&o, "ns", []string{"a", "b", "c"})
	for key, want := range map[string]string{"b": "", "c": "b", "d": "b"} {
		if got := o.Parent("ns", key); got != want {
			t.Errorf("before %s comes %q, want %q", key, got, want)
		}
	}
}

// TestPutCountsForLess: puts of several chains come together; what was asked says where each
// begins, before or after.
func TestPutCountsForLess(t *testing.T) {
	first, second := chain("a", 0, 3), chain("b", 0, 3)
	want := map[string]string{"a0": "", "a1": "a0", "b0": "", "b1": "b0", "c1": "c0", "c2": ""}
	for _, order := range []string{"asked first", "put first"} {
		var o Orders
		ask := func() {
			Asked(&o, "ns", first)
			Asked(&o, "ns", second)
		}
		put := func() {
			Put(&o, "ns", append(chain("a", 0, 3), second...))
			Put(&o, "ns", chain("c", 0, 3))
			Put(&o, "ns", []string{"x", "c2"})
		}
		if order == "put first" {
			ask, put = put, ask
		}
		ask()
		put()
		for key, want := range want {
			if got := o.Parent("ns", key); got != want {
				t.Errorf("%s: before %s comes %q, want %q", order, key, got, want)
			}
		}
	}
}

// TestPartsOfAChain: that a request began within a chain says nothing of what it began with.
func TestPartsOfAChain(t *testing.T) {
	for _, requests := range [][][]string{{chain("a", 5, 8), chain("a", 0, 8)}, {chain("a", 0, 8), chain("a", 5, 8)}} {
		var o Orders
		for _, r := range requests {
			Asked(&o, "ns", r)
		}
		if got := o.Parent("ns", "a5"); got != "a4" {
			t.Errorf("%q comes before a5", got)
		}
	}
}

// TestBounds: what was seen last is remembered, of as many keys as there is room for.
func TestBounds(t *testing.T) {
	var o Orders
	Asked(&o, "ns", chain("first", 0, MaxKeys))
	Asked(&o, "ns", chain("k", 0, MaxKeys))
	known := func(name string) (n int) {
		for i := 1; i < MaxKeys; i++ {
			switch o.Parent("ns", fmt.Sprint(name, i)) {
			case "":
			case fmt.Sprint(name, i-1):
				n++
			default:
				t.Fatalf("of %s%d another one's parent is told", name, i)
			}
		}
		return n
	}
	if first, last := known("first"), known("k"); len(o.mu.seen) != MaxKeys || last < MaxKeys/2 || first >= last || first+last > MaxKeys {
		t.Errorf("%d places, %d of the first and %d of the last are known", len(o.mu.seen), first, last)
	}
	long := strings.Repeat("x", MaxKey)
	Asked(&o, "ns", []string{long + "x", "a", long, "b"})
	if o.Parent("ns", "a") != "" || o.Parent("ns", long) != "a" || o.Parent("ns", "b") != long {
		t.Error("a key that is too long comes before one, or others do not")
	}
}

func BenchmarkAsked(b *testing.B) {
	var o Orders
	keys := chain(strings.Repeat("k", 56), 0, 512)
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			o = Orders{}
			Asked(&o, "ns", keys)
		}
	})
	b.Run("seen", func(b *testing.B) {
		for b.Loop() {
			Asked(&o, "ns", keys)
		}
	})
}
