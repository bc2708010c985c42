package shm

import (
	"path/filepath"
	"testing"

	"cascadekv/tiers/memory"
)

// TestInUse: a rank has an arena under its name, or under the next where something else has that one, until it ends.
func TestInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	if InUse(path) {
		t.Error("a file that is not there is in use")
	}
	for _, at := range []string{path, path + ".3"} {
		tier, err := memory.Open(memory.Options{Name: Name, Path: at, Bytes: memory.MinBytes})
		if err != nil {
			t.Fatal(err)
		}
		if !InUse(path) {
			t.Errorf("%s is in use", at)
		}
		if err := tier.Close(); err != nil {
			t.Fatal(err)
		}
		if InUse(path) {
			t.Errorf("%s is in use after its end", at)
		}
	}
}
