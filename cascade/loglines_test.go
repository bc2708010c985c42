package cascade

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// TestOneCommandLogsFewLines deletes, expires and clears when no other rank
// answers: a DEL has as many keys as a client likes, and each of them has failed.
func TestOneCommandLogsFewLines(t *testing.T) {
	const keys = 200
	var lines bytes.Buffer
	j := &job{t: t, log: slog.NewTextHandler(&lines, nil)}
	s := j.open(2, 8<<20).ranks[0]
	ended, end := context.WithCancel(t.Context())
	end()
	for i := range keys {
		s.Delete(ended, "ns", fmt.Sprint(i))
	}
	for range keys {
		s.Clear(ended, "ns", false)
	}
	if n := bytes.Count(lines.Bytes(), []byte("\n")); n < 1 || n > 4 {
		t.Errorf("%d lines for %d commands, want one of each kind:\n%.1000s", n, 2*keys, lines.Bytes())
	}

	// What was left out is counted in the next line.
	s.limited.Every = time.Nanosecond
	s.Delete(ended, "ns", "again")
	total := 0
	for _, m := range regexp.MustCompile(`(?m)suppressed=(\d+)$`).FindAllSubmatch(lines.Bytes(), -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		total += 1 + n
	}
	if want := 2*keys + 1; total != want {
		t.Errorf("lines and counts make %d events, want %d:\n%s", total, want, lines.Bytes())
	}
}
