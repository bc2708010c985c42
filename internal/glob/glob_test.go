package glob

import (
	"strings"
	"testing"
	"time"
)

func TestGlob(t *testing.T) {
	for name, x := range map[string]struct {
		pattern, s string
		want       bool
	}{
		"star":             {"a*c", "abbc", true},
		"star over slash":  {"meta*@1", "meta-llama/Llama@1", true},
		"question":         {"a?c", "a/c", true},
		"question is one":  {"a?c", "ac", false},
		"set":              {"a[bx]c", "abc", true},
		"not in set":       {"a[^b]c", "abc", false},
		"range":            {"[a-c]1", "b1", true},
		"range, backwards": {"[c-a]1", "b1", true},
		"outside a range":  {"[a-c]1", "d1", false},
		"dash at the end":  {"[a-]1", "-1", true},
		"escape in set":    {`[\]x]`, "]", true},
		"escape":           {`a\*c`, "a*c", true},
		"escape is exact":  {`a\*c`, "abc", false},
		"whole":            {"ab", "abc", false},
		"broken":           {"a[", "a[", false},
		"stars go back":    {"*a*b*c*", "xxaxbxaxbxc", true},
		"last star":        {"*ab", "aabab", true},
		"bytes, not runes": {"??", "ä", true},
		"empty":            {"", "", true},
		"only stars":       {"***", "", true},
	} {
		if g, ok := Compile(x.pattern); !ok || g.Match(x.s) != x.want {
			t.Errorf("%s: %q on %q", name, x.pattern, x.s)
		}
	}
}

// A pattern of the greatest length, against the longest key, at its worst.
func TestGlobIsNotExponential(t *testing.T) {
	g, ok := Compile(strings.Repeat("*a", MaxPattern/2-1) + "*b")
	if !ok || len(g.tokens) > MaxPattern {
		t.Fatal(len(g.tokens))
	}
	done := make(chan bool)
	go func() { done <- g.Match(strings.Repeat("a", 1024)) }()
	select {
	case matched := <-done:
		if matched {
			t.Error("a b was found")
		}
	case <-time.After(time.Minute):
		t.Fatal("still at it")
	}
}
