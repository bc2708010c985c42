//go:build faults

package inject

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/bits"
	"os"
	"strings"
	"testing"
	"time"
)

func set(t *testing.T, texts ...string) {
	t.Helper()
	if err := Set(texts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Set() })
}

// A rule makes each N-th step fail, so many times at most, and counts that.
func TestFaultsCount(t *testing.T) {
	set(t, "pin error every=2 count=2", "copy flip")
	failed := ""
	for range 8 {
		if Err(Pin) != nil {
			failed += "x"
		} else {
			failed += "."
		}
	}
	if failed != ".x.x...." {
		t.Errorf("failed: %s", failed)
	}
	if Wait(t.Context(), Lookup) != nil || Lost(Completion) {
		t.Error("a step without a rule fails")
	}
	got := Report()
	if len(got) != 2 || got[0] != (Fired{Step: Pin, Kind: fails, Reached: 8, Fired: 2}) || got[1] != (Fired{Step: Copy, Kind: flip}) {
		t.Errorf("%+v", got)
	}
	if err := Set(); err != nil || len(Report()) != 0 || Err(Pin) != nil {
		t.Errorf("rules stay in force: %v, %+v", err, Report())
	}
}

func TestFaultsThatCanNotBe(t *testing.T) {
	set(t, "pin error")
	for text, want := range map[string]string{
		"pin":                   "is no rule",
		"pun error":             "no step",
		"pin flip":              "it has error",
		"copy flip every=0":     "every=0",
		"copy flip every=x":     "every=x",
		"copy delay wait=1":     "wait=1",
		"copy delay sometimes":  "want every=",
		"lookup error count=-1": "count=-1",
	} {
		if err := Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := Set("copy flip", "copy error"); err == nil {
		t.Error("two rules for one step")
	}
	if Err(Pin) == nil {
		t.Error("a rule that can not be took one out of force")
	}
}

// What is made of a read: an error, and bytes that are not those read.
func TestFaultsOfReads(t *testing.T) {
	right := bytes.Repeat([]byte{0xff}, 50)
	for rule, want := range map[string]struct {
		err  error
		ones int // bits that are left
	}{
		"segment error":          {ErrInjected, 400},
		"segment short":          {io.ErrUnexpectedEOF, 200},
		"segment flip":           {nil, 399},
		"segment drop":           {os.ErrNotExist, 400},
		"segment delay wait=1ms": {nil, 400},
		"remote delay wait=1h":   {context.DeadlineExceeded, 400},
	} {
		set(t, rule)
		step := Step(strings.Fields(rule)[0])
		p := bytes.Clone(right)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := Read(ctx, step, int64(len(p)), nil, p[:20], p[20:])
		cancel()
		ones := 0
		for _, b := range p {
			ones += bits.OnesCount8(b)
		}
		if !errors.Is(err, want.err) || ones != want.ones {
			t.Errorf("%s: %v and %d bits, want %v and %d", rule, err, ones, want.err, want.ones)
		}
		if _, err := Read(t.Context(), step, 5, io.EOF, p); err != io.EOF {
			t.Errorf("%s: a read that failed by itself fails with %v", rule, err)
		}
		if r := Report(); r[0].Fired != 1 {
			t.Errorf("%s: %+v", rule, r)
		}
	}
}

// What is copied in the place of the right bytes leaves those as they are.
func TestFaultsOfSources(t *testing.T) {
	right := []byte("0123456789")
	for rule, want := range map[string]string{"copy short": "01234", "copy flip": "0123446789", "copy delay wait=1ms": "0123456789"} {
		set(t, rule)
		if p, err := Source(Copy, right); string(p) != want || err != nil {
			t.Errorf("%s: %q, %v", rule, p, err)
		}
	}
	set(t, "copy error")
	if _, err := Source(Copy, right); !errors.Is(err, ErrInjected) || string(right) != "0123456789" {
		t.Errorf("%q, %v", right, err)
	}
}
