package memory

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/tiers"
)

// TestJobOf: an arena names the job of the process that has it, whatever it was before, and a file of which not
// even the start was made does so too.
func TestJobOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	jobOf := func(path string) (job uint64, unfinished bool, err error) {
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return JobOf(f)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what  string
		size  int64
		job   uint64
		given func()
	}{
		{"a new one", 2 * MinBytes, 7, nil},
		{"taken over", 2 * MinBytes, 8, nil},
		{"of another size", 3 * MinBytes, 9, nil},
		{"outside Slurm", 3 * MinBytes, 0, nil},
		{"damaged", 2 * MinBytes, 10, func() { write(append([]byte("CASCSHM1"), make([]byte, 2*MinBytes-8)...)) }},
		{"empty", 2 * MinBytes, 11, func() { write(nil) }},
	} {
		if c.given != nil {
			c.given()
		}
		tr, err := Open(Options{Name: "test", Path: path, Bytes: c.size, Job: c.job})
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Put(t.Context(), testItem(1, 5000)); err != nil && !errors.Is(err, tiers.ErrExists) {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got, unfinished, err := jobOf(path); got != c.job || unfinished || err != nil {
			t.Errorf("%s: job %d, %v, %v; want %d", c.what, got, unfinished, err, c.job)
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}

	head := make([]byte, MinBytes)
	storeJob(head, 12)
	write(head)
	if job, unfinished, err := jobOf(path); job != 12 || !unfinished || err != nil {
		t.Errorf("an unfinished one: job %d, %v, %v", job, unfinished, err)
	}
	for what, b := range map[string][]byte{"nothing": nil, "cut off": head[:offJob+7], "text": append([]byte("hello"), head...)} {
		write(b)
		if job, _, err := jobOf(path); !errors.Is(err, ErrOtherLayout) {
			t.Errorf("%s: job %d, %v", what, job, err)
		}
	}
}
