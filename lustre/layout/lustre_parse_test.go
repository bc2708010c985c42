package layout

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pieces of option lines: those that can be right, and those that never are.
var pieces = map[string][2][]string{
	"count": {{"-c 1", "-c 2", "-c2", "-c 0", "-c -1", "-c 40", "-c 0x2", "-c 010", "--stripe-count=2", "--stripe-c 2", "--stripe_count 1",
		"-C 5", "-C -2", "--overstripe-count=3", "--over 2"}, {"-c 2001", "-c 08", "-c two", "-C -40", "-c"}},
	"size": {{"-S 64k", "-S 65536", "-S 64", "-S 4m", "-S4M", "-S 4mb", "-S 4MiB", "-S 1.5m", "-S 0", "-S 0x100000", "-S 1g", "-S 128b", "-S 65536c", "-S .5m",
		"-S 4.m", "--stripe-size=2m", "-S 3145728", "-S 2048"}, {"-S 100000", "-S 4", "-S 4g", "-S 12x", "-S -4m", "-S 1t", "-S 4mx"}},
	"end":   {{"-E 64M", "-E 1g", "-E 64", "-E 128", "--component-end=256m", "--comp-end 512M", "-E 96m", "-E 2.5g", "-E 5t"}, {"-E 100000", "-E -1", "-E soon"}},
	"eof":   {{"-E -1", "-E eof", "-E EOF", "--comp-end=-1"}, {"-E 64M"}},
	"place": {{"-L raid0", "-L mdt"}, {"-L flash"}},
	"other": {{"-i -1", "-p ignore", "-p inherit", "-p ''"}, {"-p averylongnameofapool", "--stripe 3"}},
}

// randomLine puts pieces together, mostly right ones in an order that makes sense.
func randomLine(r *rand.Rand) string {
	var line []string
	add := func(kind string) {
		list := pieces[kind][0]
		if r.IntN(16) == 0 {
			list = pieces[kind][1]
		}
		line = append(line, list[r.IntN(len(list))])
	}
	part := func() {
		kinds := []string{"count", "size", "other", "place"}
		r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			if r.IntN(100) < map[string]int{"count": 60, "size": 50, "other": 15, "place": 10}[kind] {
				add(kind)
			}
		}
	}
	part()
	if r.IntN(2) == 0 {
		for range r.IntN(3) {
			add("end")
			part()
		}
		add("eof")
		part()
	}
	return strings.Join(line, " ")
}

// stricter are complaints about lines that lfs takes and this package does not:
// segments grow to the end of the last component, a line without options is a
// mistake, and a component does not take over -C -2 without the right to it.
var stricter = []string{"the last component ends before the file may", "no options", "-c -2: not a number of stripes"}

func TestLustreParsesAsLfs(t *testing.T) {
	dir := onLustre(t)
	r := rand.New(rand.NewPCG(1, 2))
	taken, refused := 0, 0
	for i := range 120 {
		line := randomLine(r)
		theirs, ours := filepath.Join(dir, fmt.Sprint("lfs", i)), filepath.Join(dir, fmt.Sprint("ours", i))
		out, failed := exec.Command("sh", "-c", "lfs setstripe "+line+" "+theirs).CombinedOutput()
		asked, err := Parse(line)
		var died *exec.ExitError
		switch {
		case errors.As(failed, &died) && died.ExitCode() >= 128:
			continue // lfs 2.17 divides by -S 0
		case err != nil && failed == nil:
			if !containsAny(err.Error(), stricter) {
				t.Errorf("%s: lfs takes it: %v", line, err)
			}
			continue
		case err == nil && failed != nil:
			t.Errorf("%s: read as %s, lfs refuses it: %s", line, asked, bytes.TrimSpace(out))
			continue
		case err != nil:
			refused++
			if !errors.Is(err, ErrOption) {
				t.Errorf("%s: %v", line, err)
			}
			continue
		}
		taken++
		f, _, err := createFile(ours, 0o600, asked)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		f.Close()
		if a, b := masked(raw(t, ours)), masked(raw(t, theirs)); !bytes.Equal(a, b) {
			t.Errorf("%s: files differ:\nours %x\nlfs  %x", line, a, b)
		}
	}
	if taken < 40 || refused < 20 {
		t.Errorf("%d lines taken, %d refused: too few to tell", taken, refused)
	}
	t.Logf("%d lines taken, %d refused", taken, refused)
}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}
