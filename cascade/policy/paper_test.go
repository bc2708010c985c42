package policy

import "testing"

// §III-C, equation 4: priority to be evicted is low if is_prefix or
// ref_count > 1, else high.
func TestEquation4(t *testing.T) {
	for name, c := range map[string]struct {
		meta Meta
		low  bool
	}{
		"session block":         {Meta{Refs: 1}, false},
		"no reference left":     {Meta{Refs: 0}, false},
		"two references":        {Meta{Refs: 2}, true},
		"prefix":                {Meta{Prefix: true, Refs: 1}, true},
		"prefix, no reference":  {Meta{Prefix: true}, true},
		"prefix and references": {Meta{Prefix: true, Refs: 5}, true},
		"deep and large":        {Meta{Refs: 1, Depth: 1 << 20, Size: 1 << 29}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Paper, 0)
			if err != nil {
				t.Fatal(err)
			}
			first := p.Insert(0, c.meta)
			later := p.Insert(0, Meta{Refs: 1})
			want := first
			if c.low {
				want = later
			}
			if got, ok := p.Victim(); !ok || got != want {
				t.Errorf("victim %d %v, want %d", got, ok, want)
			}
		})
	}
}

// §III-C, Algorithm 1, lines 6-10: the victim goes to shared memory if it is a
// prefix or has more than one reference, else to Lustre.
func TestAlgorithm1Demotion(t *testing.T) {
	for name, c := range map[string]struct {
		meta Meta
		want Demotion
	}{
		"line 9: session block":     {Meta{Refs: 1}, ToCold},
		"line 9: no reference left": {Meta{}, ToCold},
		"line 7: prefix":            {Meta{Prefix: true, Refs: 1}, ToNext},
		"line 7: two references":    {Meta{Refs: 2}, ToNext},
	} {
		if got := DemotionOf(c.meta); got != c.want {
			t.Errorf("%s: falls to %v, want %v", name, got, c.want)
		}
	}
}

// §III-C: "evict LRU block" (Algorithm 1, line 4) is the order among equals.
func TestPaperIsLRUAmongEquals(t *testing.T) {
	p := must(t, Paper, 0)
	old, young := p.Insert(0, Meta{Refs: 1}), p.Insert(0, Meta{Refs: 1})
	if got, _ := p.Victim(); got != old {
		t.Errorf("victim %d, want the older %d", got, old)
	}
	p.Access(requestFor(0, 0, old))
	if got, _ := p.Victim(); got != young {
		t.Errorf("victim %d, want %d, which was used before", got, young)
	}
	p.Access(requestFor(0, 1, young))
	if got, _ := p.Victim(); got != old {
		t.Errorf("victim %d, want %d, to which there is one reference", got, old)
	}
}

// Why equation 4 is not the default: shared blocks that nobody asks for any more
// push out every live one.
func TestPaperKeepsDeadHistory(t *testing.T) {
	left := map[string]bool{}
	for _, name := range []string{Paper, LRU} {
		p := must(t, name, 10)
		dead := p.Insert(0, Meta{Size: 5, Refs: 2})
		for range 20 {
			live := p.Insert(0, Meta{Size: 1, Refs: 1})
			p.Access(requestFor(0, 0, live))
			for p.Len() > 5 {
				victim, ok := p.Victim()
				if !ok {
					t.Fatalf("%s: no victim among %d blocks", name, p.Len())
				}
				left[name] = left[name] || victim == dead
				p.Remove(victim, true)
			}
		}
	}
	if left[Paper] || !left[LRU] {
		t.Errorf("dead block left under paper: %v, under lru: %v; want only lru to let it go", left[Paper], left[LRU])
	}
}
