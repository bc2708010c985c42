//go:build faults

package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of faults.
const (
	fails = "error"
	short = "short" // half of the bytes come
	delay = "delay"
	flip  = "flip" // one bit of the bytes is another one
	drop  = "drop" // what was asked for is not there, or the answer does not arrive
)

// kinds are those of each step.
var kinds = []struct {
	step Step
	can  []string
}{
	{Lookup, []string{fails, delay}},
	{Pin, []string{fails}},
	{Remote, []string{fails, short, delay, flip, drop}},
	{Segment, []string{fails, short, delay, flip, drop}},
	{Copy, []string{fails, short, delay, flip}},
	{Completion, []string{fails, delay, drop}},
}

// rule is how a step fails.
type rule struct {
	Fired
	every, count uint64
	wait         time.Duration
}

// parse reads a rule as Set describes it.
func parse(text string) (*rule, error) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return nil, fmt.Errorf("inject: %q is no rule; want STEP KIND [every=N] [count=N] [wait=D]", text)
	}
	r := &rule{Fired: Fired{Step: Step(words[0]), Kind: words[1]}, every: 1, wait: time.Second}
	if err := r.check(); err != nil {
		return nil, err
	}
	for _, w := range words[2:] {
		name, value, _ := strings.Cut(w, "=")
		var err error
		switch name {
		case "every":
			r.every, err = strconv.ParseUint(value, 10, 64)
		case "count":
			r.count, err = strconv.ParseUint(value, 10, 64)
		case "wait":
			r.wait, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("want every=, count= or wait=")
		}
		if err != nil || r.every == 0 {
			return nil, fmt.Errorf("inject: %q in %q: %v", w, text, err)
		}
	}
	return r, nil
}

func (r *rule) check() error {
	for _, k := range kinds {
		if k.step != r.Step {
			continue
		}
		if !within(r.Kind, k.can) {
			return fmt.Errorf("inject: step %s has no fault %q; it has %s", k.step, r.Kind, strings.Join(k.can, ", "))
		}
		return nil
	}
	return fmt.Errorf("inject: there is no step %q", r.Step)
}

func within(kind string, of []string) bool { return slices.Contains(of, kind) }
