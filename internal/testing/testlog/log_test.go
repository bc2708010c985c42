package testlog

import (
	"fmt"
	"sync"
	"testing"
)

// TestLog: what many write at once is all there, whole, and is found.
func TestLog(t *testing.T) {
	var l Log
	var writers sync.WaitGroup
	for i := range 50 {
		writers.Go(func() {
			fmt.Fprintf(&l, "line %02d\n", i)
			_ = l.String()
		})
	}
	writers.Wait()
	if n := len(l.Lines("line ")); n != 50 {
		t.Errorf("%d lines", n)
	}
	if got := l.Lines("line 07"); len(got) != 1 || got[0] != "line 07\n" || !l.Has("07") || l.Has("line 50") {
		t.Errorf("%q in %q", got, l.String())
	}
}
