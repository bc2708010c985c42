package lmcache

import (
	"strings"
	"testing"
)

// TestClient: who is taken for a client that counts bytes, and who never again.
func TestClient(t *testing.T) {
	const key = "model@01000100@0@abcd"
	for _, c := range []struct {
		commands string // separated by ";"
		fixed    bool
	}{
		{"", false},
		{"AUTH password", false},
		{"AUTH password;EXISTS " + key, true},
		{"SET " + key + " v;GET " + key + ";DEL " + key, true},
		{"SET " + key, false}, // without a value, and none was dropped
		{"EXISTS " + key + ";PING", false},
		{"PING;EXISTS " + key, false},
		{"EXISTS " + key + " " + key, false},
		{"GET a@b", false},
		{"GET " + key + "metadata", false},
		{"GET " + key + "kv_bytes;GET " + key, false},
	} {
		for _, how := range []struct{ tcp, basic bool }{{true, true}, {true, false}, {false, true}} {
			f := NewClient(how.tcp)
			for _, words := range strings.Split(c.commands, ";") {
				var args [][]byte
				for _, w := range strings.Fields(words) {
					args = append(args, []byte(w))
				}
				if len(args) > 0 {
					f.Observe(string(args[0]), args, how.basic, false)
				}
			}
			if want := c.fixed && how.tcp && how.basic; f.Fixed() != want {
				t.Errorf("%q, %+v: %v, want %v", c.commands, how, f.Fixed(), want)
			}
		}
	}
	f := NewClient(true)
	f.Observe("SET", [][]byte{[]byte("SET"), []byte(key)}, true, true)
	if !f.Fixed() {
		t.Error("a SET whose value was dropped counts against it")
	}
}

// TestPairOf: LMCache's three spellings.
func TestPairOf(t *testing.T) {
	for key, want := range map[string]string{"kmetadata": "kkv_bytes", "k:metadata": "k:kv_bytes", "{k}:metadata": "{k}:kv_bytes", "metadata": "", "kkv_bytes": "", "": ""} {
		if got, ok := PairOf(key); got != want || ok != (want != "") {
			t.Errorf("%q belongs to %q, %v", key, got, ok)
		}
	}
}
