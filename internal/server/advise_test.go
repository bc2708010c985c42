package server

import (
	"fmt"
	"strings"
	"testing"

	"cascadekv/internal/resp"
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

// TestAdviseByWords: the form with KEYS takes what the client computes in a second, and hints, and answers in tokens too; what
// cannot be understood is refused.
func TestAdviseByWords(t *testing.T) {
	r := newRig(t, 16<<20)
	c := r.client("tcp")
	for i, key := range []string{"a", "b", "KEYS"} {
		if err := c.Set(key, randomBytes(uint64(i), 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(words ...string) resp.Reply {
		t.Helper()
		a, err := c.Do(append([]string{"CASCADE.ADVISE", "redis/0"}, words...)...)
		if err != nil {
			t.Fatalf("%v: %v", words, err)
		}
		return a
	}
	if a := ask("PREFILL", "1000", "KEYS", "a", "b", "absent"); a.Field("blocks").Int != 2 || a.Field("load_tokens").Int != -1 || a.Field("block_us").Int != 0 {
		t.Errorf("without a layout: %+v", a)
	}
	if _, err := c.Do("CASCADE.LAYOUT", "redis/0", "TOKENS", "64"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		words                  []string
		blocks, tokens, blocUS int64
	}{
		{[]string{"PREFILL", "1000", "KEYS", "a", "b", "absent"}, 2, 128, 64_000},
		{[]string{"prefill", "0.5", "SHARED", "1", "DUE", "30000", "keys", "a", "b"}, 2, 128, 128e6},
		{[]string{"PREFILL", "1e12", "KEYS", "a", "b"}, 0, 0, 0},
		{[]string{"BLOCK", "1000000", "DUE", "0", "KEYS", "KEYS", "a"}, 2, 128, 1e6},
		{[]string{"BLOCK", "auto", "KEYS", "a"}, 1, 64, 0},
		{[]string{"KEYS", "a"}, 1, 64, 0},
	} {
		a := ask(tc.words...)
		if a.Field("blocks").Int != tc.blocks || a.Field("load_tokens").Int != tc.tokens || a.Field("block_us").Int != tc.blocUS || len(a.Field("runs").Elems) != 1 {
			t.Errorf("%v: %+v", tc.words, a)
		}
	}
	if a := ask("1000000", "a", "KEYS"); a.Field("blocks").Int != 2 || len(a.Elems) != 16 {
		t.Errorf("the form of before: %+v", a)
	}
	for _, bad := range []string{
		"KEYS", "PREFILL 1000 KEYS", "PREFILL 0 KEYS a", "PREFILL -1 KEYS a", "PREFILL NaN KEYS a", "PREFILL 1e13 KEYS a", "BLOCK x KEYS a", "DUE -1 KEYS a", "CHAIN KEYS a", "SHARED 1 a",
	} {
		if a, err := c.Do(append([]string{"CASCADE.ADVISE", "redis/0"}, strings.Fields(bad)...)...); err == nil {
			t.Errorf("%s is answered %+v", bad, a)
		}
	}
}
