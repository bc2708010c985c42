//go:build faults

package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/inject"
)

// rules puts rules into force by the command, and returns what those before have done.
func (r *rig) rules(texts ...string) (done []inject.Fired) {
	r.t.Helper()
	_, c := r.connect()
	defer c.Close()
	rep, err := c.Do(append([]string{"CASCADE.FAULTS"}, texts...)...)
	if err != nil || json.Unmarshal(rep.Str, &done) != nil {
		r.t.Fatalf("CASCADE.FAULTS %q: %+v, %v", texts, rep, err)
	}
	return done
}

// lost returns what was counted so far, as step/reason.
func (r *rig) lost() map[string]uint64 {
	all := map[string]uint64{}
	for step, reasons := range r.srv.Snapshot().Losses {
		for reason, n := range reasons {
			all[step+"/"+reason] = n
		}
	}
	return all
}

// hangUp ends the connection while a step is late.
func (e *engine) hangUp() {
	for range 3000 {
		if r := inject.Report(); len(r) == 1 && r[0].Fired > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	e.conn.Close()
}

// Each way in which the end of a load fails, at once and as a job: what is reported as
// loaded is there with its bytes, the rest is counted with its reason, nothing stays
// held, and the next load has everything.
func TestFaultsOfLoads(t *testing.T) {
	const size = 3 << 19 // two steps of a copy
	keys := []string{"a", "b", "c"}
	for _, c := range []struct {
		rule, status, reason string
		hangUp               bool
	}{
		{"lookup error", "000", "lookup/unavailable", false},
		{"pin error", "000", "pin/unavailable", false},
		{"pin error every=3", "110", "pin/unavailable", false},
		{"copy error", "000", "copy/unavailable", false},
		{"copy short", "000", "copy/corrupt", false},
		{"copy flip", "000", "copy/corrupt", false},
		{"copy delay wait=10ms", "111", "", false},
		{"completion error", "000", "completion/unavailable", false},
		{"completion delay wait=10ms", "111", "", false},
		{"completion drop", "", "completion/untold", false},
		{"completion delay wait=5s", "", "completion/", true},
		{"copy delay wait=500ms", "", "completion/cancelled", true},
	} {
		for _, job := range []bool{false, true} {
			t.Run(fmt.Sprint(c.rule, " job ", job), func(t *testing.T) {
				r := newRig(t, 64<<20)
				t.Cleanup(func() { _ = inject.Set() })
				e := r.engine(16 << 20)
				region := e.attach()
				var places []uint64
				store := func(e *engine, region string) {
					places = places[:0]
					for i, k := range keys {
						places = append(places, uint64(i)*size, size)
						copy(e.mem[i*size:], content("ns", k, size))
					}
					if got := e.move(append([]string{"CASCADE.STORE", region, "ns", at(places...), "KEYS"}, keys...)...); got != "111" {
						t.Fatalf("stored: %s", got)
					}
				}
				load := func(e *engine, region string, job bool) string {
					clear(e.mem)
					args := []string{"CASCADE.LOAD", region, "ns", at(places...)}
					if job {
						args = append(args, "JOB", "1")
					}
					rep, err := e.Do(append(append(args, "KEYS"), keys...)...)
					if job && err == nil {
						if rep, err = e.Do("CASCADE.DONE", "5000"); err == nil {
							rep = rep.Elems[0].Elems[1]
						}
					}
					if err != nil {
						return ""
					}
					for i, k := range keys {
						if rep.Str[i] == 1 && !bytes.Equal(e.mem[i*size:(i+1)*size], content("ns", k, size)) {
							t.Errorf("%s is reported as loaded and has other bytes", k)
						}
					}
					return digits(rep.Str)
				}
				store(e, region)
				before := r.lost()
				r.rules(c.rule)
				if c.hangUp {
					go e.hangUp()
				}
				if got := load(e, region, job); got != c.status {
					t.Errorf("status %s, want %s", got, c.status)
				}
				want := uint64(strings.Count(c.status, "0"))
				if c.status == "" {
					want = 3
				}
				// A client that has gone takes a moment to be noticed.
				counted := func() (n uint64) {
					for what, count := range r.lost() {
						if strings.HasPrefix(what, c.reason) {
							n += count - before[what]
						}
					}
					return n
				}
				for range 500 {
					if c.reason == "" || counted() == want {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if c.reason == "" && !maps.Equal(r.lost(), before) || c.reason != "" && counted() != want {
					t.Errorf("lost %v, want %d for %s", r.lost(), want, c.reason)
				}
				if done := r.rules("OFF"); len(done) != 1 || done[0].Fired == 0 {
					t.Errorf("%+v", done)
				}
				if c.status == "" {
					e = r.engine(16 << 20)
					region = e.attach()
				}
				store(e, region)
				if got := load(e, region, job); got != "111" {
					t.Errorf("without a fault: %s", got)
				}
				e.Close()
				for range 500 {
					if h := r.srv.held(); h.Jobs == 0 && h.Regions == 0 && r.store.Stats().Views == 0 {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Errorf("held: %+v, %d views", r.srv.held(), r.store.Stats().Views)
			})
		}
	}
}

// A look-up that its client did not wait for is a loss too.
func TestFaultsOfLookups(t *testing.T) {
	r := newRig(t, 16<<20)
	t.Cleanup(func() { _ = inject.Set() })
	for _, command := range []string{"CASCADE.CONTAINS", "CASCADE.PROBE"} {
		before := r.lost()["lookup/untold"]
		r.rules("lookup delay wait=1s")
		e := r.engine(4096)
		go e.hangUp()
		if rep, err := e.Do(command, "ns", "a", "b"); err == nil {
			t.Errorf("%s: %+v", command, rep)
		}
		for range 500 {
			if r.lost()["lookup/untold"] == before+2 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := r.lost()["lookup/untold"] - before; n != 2 {
			t.Errorf("%s: %d keys are counted as lost", command, n)
		}
	}
}

// The command is for the rank's own user, and refuses rules that can not be.
func TestFaultsCommand(t *testing.T) {
	r := newRig(t, 16<<20)
	_, c := r.connect()
	if _, err := c.Do("CASCADE.FAULTS", "pin flip"); code(err) != "ERR" {
		t.Errorf("a rule that can not be: %v", err)
	}
	if _, err := r.client("tcp").Do("CASCADE.FAULTS"); code(err) != "NOPERM" {
		t.Errorf("over TCP: %v", err)
	}
}
