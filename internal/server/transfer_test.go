package server

import (
	"bytes"
	"testing"
)

func TestBlocksGoFromRegionToRegion(t *testing.T) {
	r := newRig(t, 64<<20)
	a, b := r.engine(8<<20), r.engine(8<<20)
	copy(a.mem, randomBytes(7, len(a.mem)))
	na, nb := a.attach(), b.attach()
	// Two blocks, each of a piece in front and one at the back, swapped on arrival.
	here := at(0, 100_000, 5<<20, 200_001, 100_000, 1, 6<<20, 300_000)
	there := at(4<<20, 100_001, 1<<20, 200_000, 77, 200_001, 3<<20, 100_000)
	if got := a.move("CASCADE.STORE", na, "ns", here, "CHAIN", "KEYS", "k1", "k2"); got != "11" {
		t.Fatal("STORE:", got)
	}
	if got := b.move("CASCADE.LOAD", nb, "ns", there, "KEYS", "k1", "k2"); got != "11" {
		t.Fatal("LOAD:", got)
	}
	for i, k := range []string{"k1", "k2"} {
		v, err := r.store.Get(t.Context(), "ns", k)
		if err != nil {
			t.Fatal(err)
		}
		want := append(append([]byte{}, a.mem[i*100_000:i*100_000+[]int{100_000, 1}[i]]...), a.mem[(5+i)<<20:(5+i)<<20+[]int{200_001, 300_000}[i]]...)
		if !bytes.Equal(v.Bytes(), want) {
			t.Errorf("%s is stored wrongly", k)
		}
		v.Release()
		got := append(append([]byte{}, b.mem[[]int{4 << 20, 77}[i]:][:[]int{100_001, 200_001}[i]]...), b.mem[[]int{1 << 20, 3 << 20}[i]:][:[]int{200_000, 100_000}[i]]...)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is loaded wrongly", k)
		}
	}
	if info, _ := r.store.Stat(t.Context(), "ns", "k2"); info.Parent != "k1" {
		t.Errorf("CHAIN: the parent of k2 is %q", info.Parent)
	}
}

func TestJobIsToldByDone(t *testing.T) {
	r := newRig(t, 64<<20)
	e := r.engine(1 << 20)
	copy(e.mem, randomBytes(1, len(e.mem)))
	n := e.attach()
	if rep, err := e.Do("CASCADE.STORE", n, "ns", at(0, 1000, 1000, 1000), "JOB", "7", "KEYS", "a", "b"); err != nil || rep.Text() != "QUEUED" {
		t.Fatal(rep, err)
	}
	rep, err := e.Do("CASCADE.DONE", "5000")
	if err != nil || len(rep.Elems) != 1 || rep.Elems[0].Elems[0].Int != 7 || digits(rep.Elems[0].Elems[1].Str) != "11" {
		t.Fatalf("DONE: %+v, %v", rep, err)
	}
	if rep, err = e.Do("CASCADE.DONE", "5000"); err != nil || len(rep.Elems) != 0 {
		t.Fatalf("DONE without a job: %+v, %v", rep, err)
	}
}
