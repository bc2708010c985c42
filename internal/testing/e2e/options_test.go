package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestRankWithUnusualOptions: what few ranks are started with works together: a
// tier in the rank's own memory, ids of 256 bits, reads that are not verified, logs
// for machines, profiles.
func TestRankWithUnusualOptions(t *testing.T) {
	admin := freePort(t)
	r := start(t, newPlace(t, "32MiB"), "--host-bytes", "8MiB", "--id-bits", "256", "--verify-reads=false", "--log-format", "json", "--admin-listen", admin)
	c := r.dial(t)
	const blocks = 60 // of 300 KiB: more than fit into the host tier
	value := func(i int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), 300<<10/8) }
	for i := range blocks {
		if err := c.Set(fmt.Sprint("k", i), value(i)); err != nil {
			t.Fatal(err)
		}
	}
	room := make([]byte, 300<<10)
	for g := range 2 * blocks { // each from below, and then from the host tier
		i := g / 2
		if n, err := c.Get(fmt.Sprint("k", i), room); err != nil || !bytes.Equal(room[:n], value(i)) {
			t.Errorf("block %d: %d bytes, %v", i, n, err)
		}
	}
	st := r.stats(t)
	names := []string{}
	for _, tier := range st.Tiers {
		names = append(names, tier.Name)
		if tier.Hits == 0 || tier.Usage.Blocks == 0 {
			t.Errorf("tier %s: %+v", tier.Name, tier)
		}
	}
	if !slices.Equal(names, []string{"host", "shm"}) {
		t.Errorf("tiers are %v", names)
	}
	id, err := c.Do("CASCADE.PUT", "content", "some bytes")
	if want := "0d22cdcc10e6d049dbe1af5123d50873fdfc1a4f58306e58cb6241be9472014d"; err != nil || id.Text() != want { // by sha256sum
		t.Errorf("CASCADE.PUT answers %q, %v, want %s", id.Text(), err, want)
	}
	profile, err := http.Get("http://" + admin + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer profile.Body.Close()
	if text, err := io.ReadAll(profile.Body); err != nil || profile.StatusCode != 200 || !bytes.Contains(text, []byte("goroutine profile")) {
		t.Errorf("a profile: %s, %v, %.100q", profile.Status, err, text)
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	for line := range strings.Lines(r.stderr.String()) {
		var record struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Time == "" || record.Level == "" || record.Msg == "" {
			t.Errorf("a line of the log is no record: %q (%v)", line, err)
		}
	}
}

// TestSegmentBlocks: segments of few blocks, and what they hold is found again.
func TestSegmentBlocks(t *testing.T) {
	p := newPlace(t, "32MiB").withLustre()
	keys := map[string]string{}
	for i := range 50 {
		keys[fmt.Sprint("k", i)] = strings.Repeat(fmt.Sprint("value ", i, " "), 100)
	}
	r := start(t, p, "--lustre-segment-blocks", "16")
	c := r.dial(t)
	for k, v := range keys {
		if err := c.Set(k, []byte(v)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do("CASCADE.DRAIN"); err != nil { // else all are one batch, and one segment
			t.Fatal(err)
		}
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	if n := len(segmentsOf(t, p.lustre, "agg_rank000_*.bin")); n != 4 {
		t.Errorf("50 blocks are in %d segments of at most 16", n)
	}
	c = start(t, p).dial(t)
	for k, v := range keys {
		wantValue(t, c, k, v)
	}
}
