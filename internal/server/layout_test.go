package server

import (
	"strings"
	"testing"

	"cascadekv/internal/resp"
)

// TestLayout: what a client says of a namespace is told to all, and by STAT of its blocks.
func TestLayout(t *testing.T) {
	r := newRig(t, 8<<20)
	c := r.client("unix")
	do := func(words ...string) resp.Reply {
		t.Helper()
		rep, err := c.Do(words...)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	if rep := do("CASCADE.LAYOUT", "ns"); !rep.Null() {
		t.Errorf("of nothing: %+v", rep)
	}
	do("CASCADE.PUT", "k", strings.Repeat("x", 60), "NS", "ns")
	if rep := do("CASCADE.STAT", "ns", "k"); rep.Field("key_bytes").Int != -1 || !rep.Field("layout").Null() {
		t.Errorf("STAT before: %+v", rep)
	}
	words := []string{"CASCADE.LAYOUT", "ns", "bytes", "120", "KEYBYTES", "40", "TOKENS", "16", "LAYERS", "2", "HEADS", "8", "HEADDIM", "80", "DTYPE", "bf16"}
	if rep := do(words...); rep.Text() != "OK" {
		t.Fatalf("%+v", rep)
	}
	stat := do("CASCADE.STAT", "ns", "k")
	if stat.Field("key_bytes").Int != 20 {
		t.Errorf("key_bytes %+v", stat.Field("key_bytes"))
	}
	for _, rep := range []resp.Reply{do("CASCADE.LAYOUT", "ns"), stat.Field("layout")} {
		for field, want := range map[string]string{
			"bytes": "120", "key_bytes": "40", "tokens": "16", "layers": "2", "heads": "8", "head_dim": "80", "dtype": "bf16",
		} {
			if got := rep.Field(field).Text(); got != want {
				t.Errorf("%s: %q, want %q", field, got, want)
			}
		}
	}
	if l := r.srv.Snapshot().Namespaces[0].Layout; l == nil || l.Tokens != 16 {
		t.Errorf("STATS has %v", l)
	}
	for what, words := range map[string][]string{
		"keys of more than the block": {"KEYBYTES", "5"}, "a negative number": {"TOKENS", "-1"}, "a large one": {"HEADS", "4294967296"},
		"no value": {"LAYERS"}, "an unknown word": {"COLOUR", "1"}, "a long dtype": {"DTYPE", strings.Repeat("x", 65)},
	} {
		rep, err := c.Do(append([]string{"CASCADE.LAYOUT", "ns"}, words...)...)
		if err == nil {
			t.Errorf("%s: %+v", what, rep)
		}
	}
	if rep := do("CASCADE.LAYOUT", "ns"); rep.Field("tokens").Int != 16 {
		t.Errorf("refused, and it is %+v", rep)
	}
}
