package lease

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var goldenProcess = Process{
	Boot:  [16]byte{0x68, 0xec, 0, 0x68, 0xee, 0xd7, 0x4a, 0x2d, 0x8d, 0xd9, 0x91, 0xc7, 0xc8, 0x0c, 0x24, 0xff},
	Space: 4026531836, ID: 4711, Start: 123456, Host: "nid001234.cluster",
}

// TestGoldenToken holds the names of docs/format.md §1.10.
func TestGoldenToken(t *testing.T) {
	alive := Token{Owner: 0x18f3a2b4c5d6e7f8, Renewed: 1800000000, Process: goldenProcess}
	closed := alive
	closed.Closed = true
	for name, token := range map[string]Token{
		"alive.18f3a2b4c5d6e7f8.1800000000.68ec0068eed74a2d8dd991c7c80c24ff.4026531836.4711.123456.nid001234.cluster":  alive,
		"closed.18f3a2b4c5d6e7f8.1800000000.68ec0068eed74a2d8dd991c7c80c24ff.4026531836.4711.123456.nid001234.cluster": closed,
		"alive.0000000000000001.0.00000000000000000000000000000000.0.0.0._":                                            {Owner: 1, Process: Process{Host: "_"}},
	} {
		if token.String() != name {
			t.Errorf("%s, want %s", token, name)
		}
		if got, ok := ParseToken(name); !ok || got != token {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	good := alive.String()
	for _, bad := range []string{
		"", "alive", "agg_rank003_000000.bin", strings.Replace(good, "alive", "dead", 1), strings.Replace(good, "18f3", "18F3", 1),
		strings.Replace(good, "18f3", "018f3", 1), strings.Replace(good, ".1800000000", ".01800000000", 1), strings.Replace(good, ".1800000000", ".-1", 1),
		strings.Replace(good, ".1800000000", ".1800000000000", 1), strings.Replace(good, "68ec", "68eg", 1), strings.Replace(good, "68ec", "68", 1),
		strings.Replace(good, ".4711.", ".99999999999999999999.", 1), strings.TrimSuffix(good, "nid001234.cluster"), good + "/x", good + "ü", good + strings.Repeat("x", maxHost),
	} {
		if token, ok := ParseToken(bad); ok {
			t.Errorf("%q is taken for %+v", bad, token)
		}
	}
}

// FuzzToken: what is taken for a token is written as it was read, and its name
// fits into a directory.
func FuzzToken(f *testing.F) {
	f.Add(Token{Owner: 1, Renewed: 2, Process: goldenProcess}.String())
	f.Add(Token{Owner: 1, Closed: true, Process: Process{Host: "_"}}.String())
	f.Add("alive.0000000000000001.1800000000.68ec0068eed74a2d8dd991c7c80c24ff.1.2.3.a.b.c")
	f.Fuzz(func(t *testing.T, name string) {
		token, ok := ParseToken(name)
		if !ok {
			return
		}
		if token.String() != name || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
			t.Errorf("%q became %q", name, token)
		}
		if next := token.next(time.Unix(1800000000, 0)); next.Renewed <= token.Renewed && token.Renewed != maxRenewed {
			t.Errorf("renewed at %d after %d", next.Renewed, token.Renewed)
		}
	})
}

func TestCleanHost(t *testing.T) {
	for name, want := range map[string]string{"nid001.x": "nid001.x", "": "_", "a/b ü": "a_b__", strings.Repeat("n", 80): strings.Repeat("n", maxHost)} {
		if got := cleanHost(name); got != want {
			t.Errorf("%q became %q, want %q", name, got, want)
		}
	}
}

// TestSelf: a process knows itself by what Linux tells, and that it exists.
func TestSelf(t *testing.T) {
	p := Self()
	if p.Boot == [16]byte{} || p.Space == 0 || p.ID != uint64(os.Getpid()) || p.Start == 0 || p.Host == "" {
		t.Fatalf("%+v", p)
	}
	if p.Gone() || !Killed().Gone() {
		t.Errorf("gone: itself %v, a process with an id that there cannot be %v", p.Gone(), Killed().Gone())
	}
}

// TestGone: only certainty counts.
func TestGone(t *testing.T) {
	proc := t.TempDir()
	show := func(id uint64, state string, threads int, start uint64) {
		stat := strconv.FormatUint(id, 10) + " (a) S (b) " + state + strings.Repeat(" 0", 16) + " " + strconv.Itoa(threads) + " 0 " + strconv.FormatUint(start, 10) + " 0"
		writeFile(t, []byte(stat), proc, strconv.FormatUint(id, 10), "stat")
	}
	self := goldenProcess
	other := func(change func(*Process)) Process {
		p := goldenProcess
		p.ID, p.Start = 5, 50
		change(&p)
		return p
	}
	same := func(*Process) {}
	if other(same).gone(proc, self) {
		t.Error("a process is gone where none is shown")
	}
	show(self.ID, "R", 9, self.Start)
	for name, c := range map[string]struct {
		show func()
		p    Process
		want bool
	}{
		"no such process": {func() {}, other(same), true},
		"running":         {func() { show(5, "S", 3, 50) }, other(same), false},
		"id used again":   {func() { show(5, "S", 3, 51) }, other(same), true},
		"zombie":          {func() { show(5, "Z", 1, 50) }, other(same), true},
		"threads at work": {func() { show(5, "Z", 2, 50) }, other(same), false},
		"another node":    {func() {}, other(func(p *Process) { p.Boot[0]++ }), false},
		"another space":   {func() {}, other(func(p *Process) { p.Space++ }), false},
		"unknown boot":    {func() {}, other(func(p *Process) { p.Boot = [16]byte{} }), false},
		"not readable":    {func() { writeFile(t, []byte("5 (x"), proc, "5", "stat") }, other(same), false},
	} {
		if err := os.RemoveAll(filepath.Join(proc, "5")); err != nil {
			t.Fatal(err)
		}
		c.show()
		if got := c.p.gone(proc, self); got != c.want {
			t.Errorf("%s: gone is %v", name, got)
		}
	}
	hidden := self
	hidden.Start++
	if other(same).gone(proc, hidden) {
		t.Error("the processes of another pid namespace count")
	}
}

func writeFile(t *testing.T, p []byte, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, p, 0o600); err != nil {
		t.Fatal(err)
	}
}
