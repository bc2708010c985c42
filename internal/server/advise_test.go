package server

import (
	"fmt"
	"testing"
)

// TestAdvise: a client that computes slowly loads all that is there, one that computes in no time
// loads nothing, and the fields of PROBE are the same.
func TestAdvise(t *testing.T) {
	r := newRig(t, 16<<20)
	c := r.client("unix")
	words := []string{"redis/0"}
	for i := range 6 {
		key := fmt.Sprint("k", i)
		if i < 4 {
			if err := c.Set(key, randomBytes(uint64(i), 100_000)); err != nil {
				t.Fatal(err)
			}
		}
		words = append(words, key)
	}
	probe, err := c.Do(append([]string{"CASCADE.PROBE"}, words...)...)
	if err != nil || probe.Field("hits").Int != 4 || probe.Field("bytes").Int != 400_000 || probe.Field("load_us").Int <= 0 {
		t.Fatalf("PROBE %+v, %v", probe, err)
	}
	runs := probe.Field("runs").Elems
	if len(runs) != 1 || len(runs[0].Elems) != 4 || runs[0].Elems[1].Int != 4 || runs[0].Elems[2].Int != 400_000 || runs[0].Elems[3].Int != probe.Field("load_us").Int {
		t.Errorf("runs %+v", runs)
	}
	for blockUS, want := range map[string]int64{"0": 0, "1000000": 4} {
		a, err := c.Do(append([]string{"CASCADE.ADVISE", words[0], blockUS}, words[1:]...)...)
		if err != nil || a.Field("hits").Int != 4 || a.Field("blocks").Int != want || (a.Field("blocks_us").Int > 0) != (want > 0) {
			t.Errorf("ADVISE of %s us: %+v, %v", blockUS, a, err)
		}
	}
	a, err := c.Do(append([]string{"CASCADE.ADVISE", words[0], "auto"}, words[1:]...)...)
	if err != nil || a.Field("blocks").Int != 4 || a.Field("block_us").Int != 0 {
		t.Errorf("ADVISE where nothing is learned: %+v, %v", a, err)
	}
	for _, bad := range []string{"-1", "x", "3600000001"} {
		if _, err := c.Do("CASCADE.ADVISE", "redis/0", bad, "k0"); err == nil {
			t.Errorf("ADVISE of %s us is answered", bad)
		}
	}
}
