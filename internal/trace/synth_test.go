package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"time"
)

// A seed names the same bytes on every machine and in every version: published
// figures refer to seeds.
func TestSynthGolden(t *testing.T) {
	for name, c := range map[string]struct {
		o    SynthOptions
		want string
	}{
		"defaults": {SynthOptions{}, goldenDefaults},
		"seed":     {SynthOptions{Seed: 7, Requests: 500}, goldenSeed},
		"all options": {SynthOptions{Seed: 8, Requests: 500, SystemPrompts: 20, SystemTokens: 900, Zipf: 1.3, SessionsPerSecond: 0.5, Turns: 9,
			UserTokens: 200, AnswerTokens: 100, ThinkTime: 5 * time.Second, TokenTime: 5 * time.Millisecond, MaxInputTokens: 9000}, goldenAll},
	} {
		t.Run(name, func(t *testing.T) {
			sum := sha256.Sum256(synthesise(t, c.o))
			if got := hex.EncodeToString(sum[:]); got != c.want {
				t.Errorf("SHA-256 of the trace is %s, want %s", got, c.want)
			}
		})
	}
}

func synthesise(t testing.TB, o SynthOptions) []byte {
	t.Helper()
	s, err := NewSynth(o)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	copyAll(t, NewWriter(&out), s)
	return out.Bytes()
}

func TestSynthIsAValidTrace(t *testing.T) {
	for name, o := range map[string]SynthOptions{
		"defaults":      {},
		"short prompts": {SystemPrompts: 1, SystemTokens: 1, UserTokens: 1, AnswerTokens: 1, Turns: 1},
		"long sessions": {Turns: 100, MaxInputTokens: 20000, Requests: 3000},
		"crowded":       {SessionsPerSecond: 1000, Zipf: 10},
		"sparse":        {SessionsPerSecond: 0.001, ThinkTime: time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			text := synthesise(t, o)
			r, err := NewReader(bytes.NewReader(text), name, ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all, err := readAll(r, 0)
			if err != nil {
				t.Fatal(err)
			}
			full, _ := o.withDefaults()
			if len(all) != full.Requests {
				t.Errorf("%d requests, want %d", len(all), full.Requests)
			}
			checkShape(t, all, full)
		})
	}
}

// checkShape holds a synthesised trace to what Mooncake's traces are like: time
// never goes back, ids count up as they appear, an id has one parent.
func checkShape(t *testing.T, all []Request, o SynthOptions) {
	t.Helper()
	next, at := uint64(0), int64(0)
	for i, req := range all {
		if req.Timestamp < at {
			t.Fatalf("request %d: time goes back from %d to %d", i, at, req.Timestamp)
		}
		if req.InputTokens > o.MaxInputTokens {
			t.Fatalf("request %d: %d tokens, want at most %d", i, req.InputTokens, o.MaxInputTokens)
		}
		at = req.Timestamp
		for _, h := range req.Hashes {
			if h > next {
				t.Fatalf("request %d: id %d appears before %d", i, h, next)
			}
			if h == next {
				next++
			}
		}
	}
	info, err := Summarize(sourceOf(all...), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info.Reparented != 0 {
		t.Errorf("%d blocks have several parents", info.Reparented)
	}
}

// The default trace is a chat service's: prompts are shared, turns continue.
func TestSynthReuse(t *testing.T) {
	s, err := NewSynth(SynthOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := Summarize(s, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info.HitRatioBlocks < 0.5 || info.HitRatioBlocks > 0.9 {
		t.Errorf("unlimited hit ratio %.3f, want 0.5 to 0.9", info.HitRatioBlocks)
	}
	t.Logf("%+v", info)
}

// TestSynthUniform: no prompt is more popular than others, unlike by default.
func TestSynthUniform(t *testing.T) {
	most := func(o SynthOptions) (share float64) {
		o.Requests, o.SystemPrompts, o.Turns = 4000, 10, 1
		s, err := NewSynth(o)
		if err != nil {
			t.Fatal(err)
		}
		counts, all := map[uint64]int{}, 0
		var req Request
		for s.Next(&req) == nil {
			counts[req.Hashes[0]]++
			all++
		}
		n := 0
		for _, c := range counts {
			n = max(n, c)
		}
		return float64(n) / float64(all)
	}
	if uniform, zipf := most(SynthOptions{Uniform: true}), most(SynthOptions{}); uniform > 0.15 || zipf < 0.25 {
		t.Errorf("the most popular of ten prompts has %.2f of all requests, %.2f by default", uniform, zipf)
	}
}

func TestSynthRefuses(t *testing.T) {
	for name, o := range map[string]SynthOptions{
		"negative count":       {Requests: -1},
		"huge prompt":          {SystemTokens: 1 << 30},
		"prompt beyond window": {SystemTokens: 4000, MaxInputTokens: 5000},
		"negative time":        {ThinkTime: -1},
		"negative rate":        {SessionsPerSecond: -1},
		"huge rate":            {SessionsPerSecond: 1e9},
		"flat zipf":            {Zipf: -1},
		"two popularities":     {Zipf: 1, Uniform: true},
		"more than all wrong":  {Hints: true, WrongHints: 1.1},
		"wrong without hints":  {WrongHints: 0.1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewSynth(o); !errors.Is(err, ErrBadSynth) {
				t.Errorf("got %v, want ErrBadSynth", err)
			}
		})
	}
}

// The means of the generator's distributions are what the options promise.
func TestRandomMeans(t *testing.T) {
	const n, mean = 200_000, 10_000
	for name, draw := range map[string]func(*random) int64{
		"spread": func(r *random) int64 { return r.spread(mean) },
		"heavy":  func(r *random) int64 { return r.heavy(mean) },
		"below":  func(r *random) int64 { return int64(r.below(2 * mean)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRandom(1, 2)
			sum := int64(0)
			for range n {
				sum += draw(&r)
			}
			if got := float64(sum) / n; got < 0.98*mean || got > 1.02*mean {
				t.Errorf("mean %.0f, want %d within 2 %%", got, mean)
			}
		})
	}
}

func TestSynthEnds(t *testing.T) {
	s, err := NewSynth(SynthOptions{Requests: 1})
	if err != nil {
		t.Fatal(err)
	}
	var req Request
	if err := s.Next(&req); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Next(&req); err != io.EOF {
			t.Errorf("got %v, want io.EOF", err)
		}
	}
}

// TestSynthHints: hints are true: each session's requests grow, its pause is the
// time to its next request after the answer, and its shared blocks are those
// that other sessions have. Wrong hints change no request.
func TestSynthHints(t *testing.T) {
	read := func(o SynthOptions) []Request {
		r, err := NewReader(bytes.NewReader(synthesise(t, o)), "synth", ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := readAll(r, 0)
		if err != nil || r.Assumed() != (Assumed{}) || r.Form() != Mooncake {
			t.Fatalf("%v, assumed %s in form %s", err, r.Assumed(), r.Form())
		}
		return all
	}
	o := SynthOptions{Requests: 1000, Hints: true, TokenTime: 10 * time.Millisecond}
	hinted := read(o)
	last, owners := map[string]Request{}, map[uint64]string{}
	followed := 0
	for i, req := range hinted {
		if before, ok := last[req.Session]; ok {
			followed++
			due := before.Timestamp + 10*int64(before.OutputTokens) + before.Pause
			if before.Pause == 0 || req.Timestamp < due-1 || req.Timestamp > due || len(req.Hashes) < len(before.Hashes) || req.SharedBlocks != before.SharedBlocks {
				t.Fatalf("request %d, %+v, follows %+v", i, req, before)
			}
		}
		last[req.Session] = req
		for k, h := range req.Hashes {
			owner, seen := owners[h]
			if seen && owner != req.Session && k >= req.SharedBlocks {
				t.Fatalf("request %d: block %d is shared with %s, the hint has %d shared blocks", i, k, owner, req.SharedBlocks)
			}
			owners[h] = req.Session
		}
	}
	if followed < 500 {
		t.Errorf("%d requests continue a session, want most of 1000", followed)
	}
	o.WrongHints = 0.25
	misled := read(o)
	wrong := 0
	o.Hints, o.WrongHints = false, 0
	for i, plain := range read(o) {
		if hinted[i].Pause > 0 != (misled[i].Pause > 0) {
			wrong++
		}
		for _, all := range [][]Request{hinted, misled} {
			all[i].Session, all[i].SharedBlocks, all[i].Pause = "", 0, 0
			if !same(all[i], plain) {
				t.Fatalf("request %d is %+v with hints, %+v without", i, all[i], plain)
			}
		}
	}
	if wrong < 200 || wrong > 300 {
		t.Errorf("%d of 1000 pauses are wrong, want about 250", wrong)
	}
}
