//go:build faults

package inject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Enabled reports whether the build has the tag faults.
const Enabled = true

// ErrInjected is the error of a step whose rule is an error.
var ErrInjected = errors.New("inject: the step fails")

// rules are those in force, by step.
var rules struct {
	sync.Mutex
	of map[Step]*rule
}

// Set puts rules in the place of those in force. If one is wrong nothing changes.
//
// A rule is STEP KIND, and then in any order every=N (each N-th time; default 1),
// count=N (so many times at most; default no bound) and wait=D (how long a delay lasts;
// default 1s). The kinds of a step are in kinds.
func Set(texts ...string) error {
	of := map[Step]*rule{}
	for _, text := range texts {
		r, err := parse(text)
		switch {
		case err != nil:
			return err
		case of[r.Step] != nil:
			return fmt.Errorf("inject: two rules for step %s", r.Step)
		}
		of[r.Step] = r
	}
	rules.Lock()
	defer rules.Unlock()
	rules.of = of
	return nil
}

// Fired is what a rule has done.
type Fired struct {
	Step    Step   `json:"step"`
	Kind    string `json:"kind"`
	Reached uint64 `json:"reached"` // times that the step was gone through
	Fired   uint64 `json:"fired"`   // of those, times that it was made to fail
}

// Report returns what the rules in force have done, in the order of steps.
func Report() []Fired {
	rules.Lock()
	defer rules.Unlock()
	all := []Fired{}
	for _, k := range kinds {
		if r := rules.of[k.step]; r != nil {
			all = append(all, r.Fired)
		}
	}
	return all
}

// next counts that a step is gone through. It returns what is to happen, "" for nothing,
// if that is one of the kinds that the caller can make happen.
func next(s Step, can ...string) (kind string, wait time.Duration) {
	rules.Lock()
	defer rules.Unlock()
	r := rules.of[s]
	if r == nil || !within(r.Kind, can) {
		return "", 0
	}
	if r.Reached++; r.Reached%r.every != 0 || r.count > 0 && r.Fired.Fired == r.count {
		return "", 0
	}
	r.Fired.Fired++
	return r.Kind, r.wait
}

// Err returns the error with which a step fails at once, nil if it does not.
func Err(s Step) error {
	if kind, _ := next(s, fails); kind != "" {
		return ErrInjected
	}
	return nil
}

// Wait returns the error with which a step fails, after the time that it takes to; nil
// if it does not fail, however late. The error is that of ctx if that ends first.
func Wait(ctx context.Context, s Step) error {
	switch kind, wait := next(s, fails, delay); kind {
	case fails:
		return ErrInjected
	case delay:
		return sleep(ctx, wait)
	}
	return nil
}

// Lost reports whether the answer of a step is lost on its way.
func Lost(s Step) bool {
	kind, _ := next(s, drop)
	return kind != ""
}

// Read is given what a read of n bytes into bufs returned, and returns what is made of
// it. A delay ends with ctx.
func Read(ctx context.Context, s Step, n int64, err error, bufs ...[]byte) (int64, error) {
	if err != nil || n == 0 {
		return n, err // the memory may still be in use
	}
	switch kind, wait := next(s, fails, short, delay, flip, drop); kind {
	case fails:
		return 0, ErrInjected
	case short:
		left := n / 2
		for _, b := range bufs {
			keep := min(left, int64(len(b)))
			clear(b[keep:])
			left -= keep
		}
		return n / 2, io.ErrUnexpectedEOF
	case delay:
		return n, sleep(ctx, wait)
	case flip:
		b := bufs[len(bufs)-1]
		b[len(b)/2] ^= 1
	case drop:
		return 0, os.ErrNotExist
	}
	return n, nil
}

// Source returns what a step copies where it should copy p, after the time that it
// takes to.
func Source(s Step, p []byte) ([]byte, error) {
	switch kind, wait := next(s, fails, short, delay, flip); kind {
	case fails:
		return nil, ErrInjected
	case short:
		return p[:len(p)/2], nil
	case delay:
		time.Sleep(wait)
	case flip:
		p = bytes.Clone(p)
		p[len(p)/2] ^= 1
	}
	return p, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Armed reports whether there is a rule for a step.
func Armed(s Step) bool {
	rules.Lock()
	defer rules.Unlock()
	return rules.of[s] != nil
}
