package block

import (
	"slices"
	"testing"
)

func TestFingerprint(t *testing.T) {
	a := Fingerprint("ns", "key")
	if a != Fingerprint("ns", []byte("key")) || a != Fingerprints("ns", "x", "key")[1] {
		t.Error("a key has several")
	}
	if a == Fingerprint("other", "key") || a == Fingerprint("ns", "key2") {
		t.Error("several keys have one")
	}
}

// TestCopyKeys: the copies are equal, and stay when the keys change.
func TestCopyKeys(t *testing.T) {
	keys := [][]byte{[]byte("a"), {}, []byte("key")}
	copies := CopyKeys(keys)
	clear(keys[2])
	if want := []string{"a", "", "key"}; !slices.Equal(copies, want) || !slices.Equal(CopyKeys(want), want) {
		t.Errorf("%q", copies)
	}
}
