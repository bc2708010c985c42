package cascade

import (
	"context"
	"fmt"
	"testing"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/testing/parttest"
)

// bounded is a change of options: room for about so many names of the tests.
func bounded(n int64) func(*Options) {
	return func(o *Options) { o.Limits.NameBytes = n * names.Cost("12345678", "12345678") }
}

// However many names clients put, in whatever shape, the heap that names take has a
// bound, puts go on, and no chain has a hole.
func TestNamesHaveABound(t *testing.T) {
	const bound, puts = 600, 3000
	shapes := map[string]func(i int) (e Entry, p []byte){
		"blocks": func(i int) (Entry, []byte) { return ns(fmt.Sprint("b", i)), data(uint64(i), 64) },
		"names of one block": func(i int) (Entry, []byte) {
			return ns(fmt.Sprint("n", i)), data(1, 64)
		},
		"short chains": func(i int) (Entry, []byte) {
			e := ns(fmt.Sprint("c", i))
			if i%20 > 0 {
				e.Parent = fmt.Sprint("c", i-1)
			}
			return e, data(uint64(i), 64)
		},
		"pairs": func(i int) (Entry, []byte) {
			if i%2 == 0 {
				return ns(fmt.Sprint("p", i)), data(uint64(i), 64)
			}
			e := ns(fmt.Sprint("p", i)) // what is the same for all, bound to the bytes
			e.Parent, e.Bound = fmt.Sprint("p", i-1), true
			return e, data(1, 64)
		},
		"namespaces": func(i int) (Entry, []byte) {
			e := ns("k")
			e.Namespace = fmt.Sprint("s", i)
			return e, data(uint64(i), 64)
		},
	}
	for _, cold := range []bool{false, true} {
		for name, shape := range shapes {
			for _, p := range policy.Names() {
				t.Run(fmt.Sprint(name, "/", cold, "/", p), func(t *testing.T) {
					r := newRig(t, 16<<20, cold, bounded(bound), func(o *Options) { o.Policy = p })
					for i := range puts {
						e, p := shape(i)
						if _, err := r.Put(context.Background(), e, p, nil); err != nil {
							t.Fatalf("put %d: %v", i, err)
						}
						if i%200 == 0 && cold {
							if _, err := r.Drain(context.Background()); err != nil {
								t.Fatal(err)
							}
						}
					}
					st := r.Stats()
					if st.NameBytes > st.NameLimit+st.NameLimit/8 || st.Names > bound*5/4 || st.Names < bound/2 || st.Forgotten == 0 {
						t.Errorf("%d names, %d of %d bytes, %d forgotten", st.Names, st.NameBytes, st.NameLimit, st.Forgotten)
					}
					e, p := shape(puts - 1)
					if v, err := r.Get(context.Background(), e.Namespace, e.Key); err != nil || string(v.Bytes()) != string(p) {
						t.Errorf("what was put last: %v", err)
					} else {
						v.Release()
					}
					parttest.NoHoles(t, r.state)
					checkInvariants(t, r.Store)
					if n := r.state.Mu.Names.SpaceCount(); name == "namespaces" && n > bound*5/4 {
						t.Errorf("%d namespaces", n)
					}
				})
			}
		}
	}
}

// A rank that finds more names than it may have takes in the youngest, each with all
// that comes before it in its chain.
func TestRecoveryKeepsTheBound(t *testing.T) {
	r := newRig(t, 16<<20, true)
	const chains, length = 50, 20
	for c := range chains {
		for i := range length {
			e := ns(fmt.Sprintf("%02d.%02d", c, i))
			if i > 0 {
				e.Parent = fmt.Sprintf("%02d.%02d", c, i-1)
			}
			r.put(e, data(uint64(c*length+i), 64))
		}
	}
	head := ns("00.00") // an old head whose chain goes on at last
	late := ns("late")
	late.Parent = head.Key
	r.put(late, data(5000, 64))
	r.Store.Close(context.Background())
	bounded(500)(&r.opt)
	r.open()
	st := r.Stats()
	if st.Names > 550 || st.Names < 400 || st.Forgotten != uint64(chains*length+1-st.Names) {
		t.Errorf("%d names, %d forgotten", st.Names, st.Forgotten)
	}
	r.want("late", data(5000, 64))
	r.want("00.00", data(0, 64))
	r.want("49.19", data(49*length+19, 64))
	r.want("03.00", nil)
	parttest.NoHoles(t, r.state)
	checkInvariants(t, r.Store)
	for i := range 1000 {
		r.put(ns(fmt.Sprint("new", i)), data(uint64(6000+i), 64))
	}
	if st := r.Stats(); st.NameBytes > st.NameLimit+st.NameLimit/8 {
		t.Errorf("%d of %d bytes", st.NameBytes, st.NameLimit)
	}
	parttest.NoHoles(t, r.state)
	checkInvariants(t, r.Store)
}
