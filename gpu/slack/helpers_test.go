package slack_test

import (
	"testing"
	"time"

	"cascadekv/gpu/slack"
)

const ms = time.Millisecond

// profile is of a model of four layers, in steps of 64 tokens: a layer computes i
// new and k restored steps for i·(10+k) ms, and leaves 16 SMs. A launch of n IOCBs reads for n ms on
// 2n SMs, and writes for 3n ms on n.
func profile() *slack.Profile {
	p := &slack.Profile{
		Key:    slack.Key{Model: "a model, bfloat16", GPU: "a GPU", Configuration: "tp=1"},
		Layers: 4, SMs: 32, StepTokens: 64, Transfers: 64, IOCBBytes: 8 << 20,
	}
	for i := 1; i <= 4; i++ {
		var r slack.Row
		for k := range 5 - i {
			r.Time = append(r.Time, time.Duration(i*(10+k))*ms)
			r.SMs = append(r.SMs, 16)
		}
		p.Prefill = append(p.Prefill, r)
	}
	for k := range 5 {
		p.Decode.Time = append(p.Decode.Time, time.Duration(4+k)*ms)
		p.Decode.SMs = append(p.Decode.SMs, 8)
	}
	for _, n := range []int{1, 2, 4, 8} {
		p.Read = append(p.Read, slack.Kernel{IOCBs: n, Time: time.Duration(n) * ms, SMs: 2 * n})
		p.Write = append(p.Write, slack.Kernel{IOCBs: n, Time: time.Duration(3*n) * ms, SMs: n})
	}
	return p
}

func scheduler(t *testing.T, p *slack.Profile) *slack.Scheduler {
	t.Helper()
	s, err := slack.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// must returns the launches of a decision that has to come.
func must(t *testing.T) func(slack.Decision, error) []slack.Launch {
	return func(d slack.Decision, err error) []slack.Launch {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return d.Launches
	}
}

// is compares launches but for their estimates and SMs.
func is(t *testing.T, what string, got []slack.Launch, want ...slack.Launch) {
	t.Helper()
	for i := range got {
		if i >= len(want) {
			break
		}
		want[i].Estimate, want[i].SMs = got[i].Estimate, got[i].SMs
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %+v, want %+v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: launch %d is %+v, want %+v", what, i, got[i], want[i])
		}
	}
}
