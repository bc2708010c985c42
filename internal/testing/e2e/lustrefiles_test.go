package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/resp"
)

// megabyte is the i-th value: a MiB, less what a segment needs beside it.
func megabyte(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%08d", i), 128<<10-1024)
}

// TestFewDescriptors: a rank that may open a hundred files, and has very many
// segments, stores all that it is given, serves all of it, and drains, while clients
// that do nothing take most of what it may open.
func TestFewDescriptors(t *testing.T) {
	const n, idle = 200, 20
	p := newPlace(t, "8MiB").withLustre()
	few := []string{"sh", "-c", `ulimit -n 100 && exec "$@"`, "sh"}
	flags := []string{"--lustre-segment-bytes", "1MiB", "--clean-above", "0.1"}
	r := startWithin(t, few, p, flags...)
	for range idle {
		r.dial(t)
	}
	c := r.dial(t)
	for i := range n {
		must(t, c.Set(fmt.Sprint("k", i), megabyte(i)))
	}
	got := make([]byte, len(megabyte(0)))
	check := func(what string, c *resp.Client) {
		t.Helper()
		misses := 0
		for i := range n {
			size, err := c.Get(fmt.Sprint("k", i), got)
			if err != nil || !bytes.Equal(got[:size], megabyte(i)) {
				misses++
			}
		}
		if misses > 0 {
			t.Errorf("%s: %d of %d values are not there", what, misses, n)
		}
	}
	check("while it runs", c)
	if files := segmentsOf(t, p.lustre, "agg_*.bin"); len(files) < 80 {
		t.Errorf("only %d segments: they show nothing", len(files))
	}
	if _, err := c.Do("CASCADE.DRAIN"); err != nil {
		t.Errorf("drain: %v", err)
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	if err := os.Remove(p.arena); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	r = startWithin(t, few, p, flags...)
	check("after a restart", r.dial(t))
}

// TestLustreDirRemoved: somebody removes lustre.dir under a rank that runs. A drain
// reports what is really there, so that all of that comes back.
func TestLustreDirRemoved(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"emptied": func(dir string) error {
			all, err := filepath.Glob(filepath.Join(dir, "*"))
			for _, path := range all {
				if err == nil {
					err = os.RemoveAll(path)
				}
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "64MiB").withLustre()
			r := start(t, p)
			c := r.dial(t)
			set := func(from, to int) {
				for i := from; i < to; i++ {
					must(t, c.Set(fmt.Sprint("k", i), megabyte(i)))
				}
			}
			set(0, 12)
			if reply, err := c.Do("CASCADE.DRAIN"); err != nil || !strings.Contains(fmt.Sprint(reply), "12") {
				t.Fatalf("%v, %v", reply, err)
			}
			must(t, remove(p.lustre))
			set(12, 36)
			reply, err := c.Do("CASCADE.DRAIN")
			if err != nil || !strings.Contains(fmt.Sprint(reply), "36") {
				t.Errorf("%v, %v: want 36 blocks, for nothing was there any more", reply, err)
			}
			r.untilSays(t, "somebody has removed files of the cold tier")
			if n := strings.Count(r.stderr.String(), "somebody has removed"); n != 1 {
				t.Errorf("it is said %d times", n)
			}
			r.kill()
			must(t, os.Remove(p.arena))
			after := start(t, p).dial(t)
			for i := range 36 {
				wantValue(t, after, fmt.Sprint("k", i), string(megabyte(i)))
			}
		})
	}
}
