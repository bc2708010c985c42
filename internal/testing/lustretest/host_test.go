package lustretest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cascadekv/internal/testing/guest"
)

// running is a storm as the host sees it.
type running struct {
	t      *testing.T
	run    runner
	status string
	stop   string
	ended  chan guest.Result
}

// patience bounds every wait of these tests; nothing takes nearly as long.
const patience = 4 * time.Minute

// begin starts a storm and waits until it has done something.
func begin(t *testing.T, run runner, c campaign, number int, more ...string) *running {
	t.Helper()
	r := &running{
		t: t, run: run, ended: make(chan guest.Result, 1),
		status: filepath.Join(c.host, fmt.Sprintf("status-%d", number)),
		stop:   filepath.Join(c.host, fmt.Sprintf("stop-%d", number)),
	}
	args := c.flags("-storm", fmt.Sprint(number), "-status", guest.Host(r.status), "-stop", guest.Host(r.stop))
	go func() {
		result, err := run(t.Context(), self("storm", append(args, more...)...))
		if err != nil {
			result = guest.Result{Status: -1, Output: err.Error()}
		}
		r.ended <- result
	}()
	r.until("the first puts and reads", func(s state) bool { return s.Puts > 20 })
	return r
}

// state is the last that the storm told.
func (r *running) state() (s state) {
	r.t.Helper()
	p, err := os.ReadFile(r.status)
	if err != nil {
		return s // it has told nothing yet
	}
	if err := json.Unmarshal(p, &s); err != nil {
		r.t.Fatalf("state of the storm: %v: %s", err, p)
	}
	return s
}

// until waits for a state, and fails the test when the storm saw something
// that may never be.
func (r *running) until(what string, ok func(state) bool) state {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s := r.state()
		r.sound(s)
		if ok(s) {
			return s
		}
		select {
		case result := <-r.ended:
			r.t.Fatalf("no %s: the storm ended with status %d: %s", what, result.Status, result.Output)
		default:
		}
		if time.Now().After(end) {
			r.t.Fatalf("no %s within %v: %+v\n%s", what, patience, s, r.stacks())
		}
	}
}

// stacks has the storm say where it stands, and its threads in the kernel.
func (r *running) stacks() string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	threads, err := r.run(ctx, `for p in $(pidof self.test); do for t in /proc/$p/task/*; do
		cut -d' ' -f1-3 $t/stat; cat $t/stack; done; kill -QUIT $p; done`)
	said := fmt.Sprintf("threads: %s, %v\n", threads.Output, err)
	select {
	case result := <-r.ended:
		return said + result.Output
	case <-ctx.Done():
		return said + "the storm does not end when asked for its stacks"
	}
}

func (r *running) sound(s state) {
	r.t.Helper()
	if s.Wrong > 0 || s.Lost > 0 || s.Fatal != "" {
		r.t.Fatalf("%d reads wrong, %d lost, %s: %+v", s.Wrong, s.Lost, s.Fatal, s)
	}
}

// each waits until every worker has had n more requests answered, so that none
// of those in flight now hangs.
func (r *running) each(n int, what string) state {
	r.t.Helper()
	before := r.state().Workers
	return r.until(fmt.Sprintf("%d answers to every worker %s", n, what), func(s state) bool {
		return !slices.ContainsFunc(indices(s.Workers), func(w int) bool { return s.Workers[w] < before[w]+n })
	})
}

func indices(of []int) []int {
	all := make([]int, len(of))
	for i := range of {
		all[i] = i
	}
	return all
}

// more waits for more puts and reads that succeed.
func (r *running) more(puts, reads int, what string) state {
	r.t.Helper()
	before := r.state()
	return r.until(fmt.Sprintf("%d more puts and %d more reads %s", puts, reads, what), func(s state) bool {
		return s.Puts >= before.Puts+puts && s.Reads >= before.Reads+reads
	})
}

// finish ends the storm.
func (r *running) finish() state {
	r.t.Helper()
	if err := os.WriteFile(r.stop, nil, 0o644); err != nil {
		r.t.Fatal(err)
	}
	select {
	case result := <-r.ended:
		if result.Status != 0 {
			r.t.Fatalf("the storm ended with status %d: %s", result.Status, result.Output)
		}
	case <-time.After(patience):
		r.t.Fatalf("the storm does not end: %+v", r.state())
	}
	s := r.state()
	r.sound(s)
	return s
}
