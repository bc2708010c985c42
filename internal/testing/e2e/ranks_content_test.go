package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/dht/directory"
)

// TestContentOfAJob: the same bytes under names of two ranks are found by their id on all, are
// counted once, and by both names.
func TestContentOfAJob(t *testing.T) {
	j := startJob(t, 3, "32MiB", true)
	clients := j.clients()
	block := bytes.Repeat([]byte("of the job "), 200_000)
	file := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(file, block, 0o600); err != nil {
		t.Fatal(err)
	}
	put := func(rank int, key string) (id string) {
		t.Helper()
		status, out, said := finish(t, program("cascade"), "put", "--key", key, file, "--socket", j.ranks[rank].socket)
		if status != 0 {
			t.Fatal(said)
		}
		if _, err := clients[rank].Do("CASCADE.DRAIN"); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	id := put(0, "a")
	until(t, "block of that id on rank 1", func() bool {
		status, out, _ := finish(t, program("cascade"), "get", "--id", id, "--socket", j.ranks[1].socket)
		return status == 0 && out == string(block)
	})
	if again := put(1, "b"); again != id {
		t.Errorf("ids %s and %s", id, again)
	}
	if status, _, _ := finish(t, program("cascade"), "get", "--id", strings.Repeat("0", len(id)), "--socket", j.ranks[1].socket); status != 3 {
		t.Errorf("get of an id that no rank has: status %d, want 3", status)
	}
	for i, c := range clients {
		for _, name := range [][]string{{"redis/0", "a"}, {"redis/0", "b"}, {directory.Contents, id}} {
			until(t, fmt.Sprintf("count of both names of %q on rank %d", name[1], i), func() bool {
				stat, err := c.Do("CASCADE.STAT", name[0], name[1])
				return err == nil && !stat.Null() && stat.Field("refs").Int == 2
			})
		}
		status, out, said := finish(t, program("cascade"), "status", "--socket", j.ranks[i].socket)
		if status != 0 {
			t.Error(said)
		}
		wantWords(t, out, "2.10 MiB stored, 4.20 MiB referenced (2.00×) on the 3 of 3 ranks that answer")
	}
}
