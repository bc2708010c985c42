package slack_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/gpu/slack"
)

// TestLookups: at a step its entry; between steps the line; outside of the table
// its edge; before the first step the line from a layer of decoding.
func TestLookups(t *testing.T) {
	p := profile()
	p.Prefill[1].SMs[1] = 12
	for _, c := range []struct {
		input, prefix int
		time          time.Duration
		sms           int
	}{
		{64, 0, 10 * ms, 16},
		{64, 64, 11 * ms, 16},
		{64, 96, 11*ms + ms/2, 16},
		{128, 0, 20 * ms, 16},
		{96, 0, 15 * ms, 16},
		{96, 64, 16*ms + ms/2, 12}, // halfway between 11 and 22, the smaller budget
		{128, 32, 21 * ms, 12},
		{256, 0, 40 * ms, 16},
		{9999, 0, 40 * ms, 16},   // not more than was profiled
		{64, 9999, 13 * ms, 16},  // likewise
		{1, 0, ms, 8},            // a layer of a decode step of 4 ms
		{1, 128, ms + ms/2, 8},   // of 6 ms
		{0, 0, 0, 0},             // nothing is computed
		{-5, -5, 0, 0},           //
		{64, -5, 10 * ms, 16},    //
		{256, 9999, 40 * ms, 16}, // the row of four steps has one window
	} {
		if got := p.LayerWindow(c.input, c.prefix); got != (slack.Window{Time: c.time, SMs: c.sms}) {
			t.Errorf("%d tokens behind %d: %+v, want %v and %d SMs", c.input, c.prefix, got, c.time, c.sms)
		}
	}
	if got := p.LayerWindow(32, 0); got.Time <= ms || got.Time >= 10*ms || got.SMs != 8 {
		t.Errorf("half a step: %+v", got)
	}
	if got := p.DecodeWindow(1 << 40); got != (slack.Window{Time: 8 * ms, SMs: 8}) {
		t.Errorf("decode: %+v", got)
	}
}

func TestLaunches(t *testing.T) {
	p := profile()
	for _, c := range []struct {
		n    int
		time time.Duration
		sms  int
	}{{-1, 0, 0}, {0, 0, 0}, {1, ms, 2}, {3, 3 * ms, 8}, {5, 5 * ms, 16}, {8, 8 * ms, 16}, {9, 9 * ms, 16}, {16, 16 * ms, 16}, {27, 27 * ms, 16}} {
		if got := p.Launch(slack.Read, c.n); got != (slack.Kernel{IOCBs: max(c.n, 0), Time: c.time, SMs: c.sms}) {
			t.Errorf("%d IOCBs: %+v, want %v and %d SMs", c.n, got, c.time, c.sms)
		}
	}
	for _, c := range []struct {
		w          slack.Window
		most, want int
	}{
		{slack.Window{Time: 100 * ms, SMs: 32}, 100, 8}, // the largest there is
		{slack.Window{Time: 100 * ms, SMs: 32}, 5, 5},
		{slack.Window{Time: 3 * ms, SMs: 32}, 5, 3},
		{slack.Window{Time: 3 * ms, SMs: 7}, 5, 2}, // three take as many SMs as four
		{slack.Window{Time: ms - 1, SMs: 32}, 5, 0},
		{slack.Window{Time: ms, SMs: 1}, 5, 0},
		{slack.Window{}, 5, 0},
		{slack.Window{Time: 3 * ms, SMs: 32}, -1, 0},
	} {
		if got := p.Fit(slack.Read, c.w, c.most); got != c.want {
			t.Errorf("%+v of %d: %d fit, want %d", c.w, c.most, got, c.want)
		}
	}
	if slack.Read.String() != "read" || slack.Write.String() != "write" {
		t.Error("names of kinds")
	}
}

// TestGolden: the form of a profile is a promise.
func TestGolden(t *testing.T) {
	golden := filepath.Join("testdata", "profile-v1.json")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	got, err := profile().Encode()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n%s\nwant %s", err, got, want)
	}
	p, err := slack.Parse(want)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := p.Encode(); err != nil || !bytes.Equal(again, want) {
		t.Errorf("%v, %s", err, again)
	}
	if got := p.FileName(); got != "slack-678a82682c68d410509a1a16b6ac8172.json" {
		t.Errorf("file %s", got)
	}
	spaced := strings.NewReplacer(`,"`, " ,\n\t\"", "{", "{\n").Replace(string(want))
	if q, err := slack.Parse([]byte(spaced)); err != nil || q.Key != p.Key {
		t.Errorf("white space: %v", err)
	}
}

// TestKeys: a profile holds for what it was made of, and for nothing else.
func TestKeys(t *testing.T) {
	p := profile()
	if err := p.Of(p.Key); err != nil {
		t.Error(err)
	}
	for _, k := range []slack.Key{
		{Model: "b", GPU: p.GPU, Configuration: p.Configuration},
		{Model: p.Model, GPU: "b", Configuration: p.Configuration},
		{Model: p.Model, GPU: p.GPU},
		{Model: p.GPU, GPU: p.Model, Configuration: p.Configuration},
	} {
		if err := p.Of(k); !errors.Is(err, slack.ErrOtherProfile) {
			t.Errorf("%v: %v", k, err)
		}
		if k.FileName() == p.FileName() {
			t.Errorf("%v has the same file", k)
		}
	}
}

// TestParseRefuses: what a person may get wrong by hand.
func TestParseRefuses(t *testing.T) {
	good, err := profile().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2]string{
		"unknown field":     {`"layers":4`, `"layers":4,"colour":1`},
		"missing field":     {`"layers":4,`, ``},
		"repeated field":    {`"layers":4`, `"layers":5,"layers":4`},
		"other case":        {`"layers":4`, `"Layers":4`},
		"another order":     {`"layers":4,"sms":32`, `"sms":32,"layers":4`},
		"a fraction":        {`"layers":4`, `"layers":4.0`},
		"an exponent":       {`"step_tokens":64`, `"step_tokens":64e0`},
		"no layers":         {`"layers":4`, `"layers":0`},
		"no GPU":            {`"gpu":"a GPU"`, `"gpu":""`},
		"other version":     {`"version":1`, `"version":2`},
		"other format":      {`cascade-slack`, `cascade-slick`},
		"steps of nothing":  {`"step_tokens":64`, `"step_tokens":0`},
		"negative time":     {`"time_ns":[4000000`, `"time_ns":[-4000000`},
		"SMs of more":       {`"sms":[8,`, `"sms":[33,`},
		"fewer budgets":     {`"sms":[8,`, `"sms":[`},
		"no first count":    {`"read":[{"iocbs":1,`, `"read":[{"iocbs":2,`},
		"faster when more":  {`{"iocbs":8,"time_ns":8000000,`, `{"iocbs":8,"time_ns":3000000,`},
		"no writes":         {`"write":[`, `"write":null,"x":[`},
		"cut":               {"]}\n", ""},
		"more behind it":    {"]}\n", "]} 1"},
		"null":              {`"decode":{`, `"decode":null,"x":{`},
		"an array":          {`{"format"`, `[{"format"`},
		"a time of a month": {`"time_ns":[4000000`, `"time_ns":[2592000000000000`},
	} {
		text := strings.Replace(string(good), c[0], c[1], 1)
		if text == string(good) {
			t.Fatalf("%s changes nothing", name)
		}
		if _, err := slack.Parse([]byte(text)); !errors.Is(err, slack.ErrProfile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := slack.Parse(make([]byte, slack.MaxProfileBytes+1)); !errors.Is(err, slack.ErrProfile) {
		t.Errorf("too long: %v", err)
	}
	p := profile()
	p.Model = strings.Repeat("m", slack.MaxText+1)
	if _, err := p.Encode(); !errors.Is(err, slack.ErrProfile) {
		t.Errorf("long name: %v", err)
	}
	p = profile()
	p.Prefill[0], p.Prefill[1] = p.Prefill[1], p.Prefill[0]
	if err := p.Check(); !errors.Is(err, slack.ErrProfile) {
		t.Errorf("a longer row behind a shorter one: %v", err)
	}
}

// FuzzParse: whatever is accepted is what Encode writes, and can be planned with.
func FuzzParse(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "profile-v1.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden, 100, 200, 3)
	f.Add([]byte(`{"format":"cascade-slack-profile","version":1,"model":"m","gpu":"g","configuration":"","layers":1,"sms":1,"step_tokens":1,"transfers":1,"iocb_bytes":1,"decode":{"time_ns":[0],"sms":[0]},"prefill":[{"time_ns":[0],"sms":[0]}],"read":[{"iocbs":1,"time_ns":1,"sms":0}],"write":[{"iocbs":1,"time_ns":1,"sms":0}]}`), 1, 0, 1)
	f.Fuzz(func(t *testing.T, text []byte, input, prefix, reads int) {
		p, err := slack.Parse(text)
		if err != nil {
			if !errors.Is(err, slack.ErrProfile) {
				t.Fatal(err)
			}
			return
		}
		out, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if q, err := slack.Parse(out); err != nil || q.Key != p.Key {
			t.Fatalf("what was written is not read: %v", err)
		}
		if w := p.LayerWindow(input, prefix); w.Time < 0 || w.Time > time.Hour || w.SMs < 0 || w.SMs > p.SMs {
			t.Fatalf("window %+v", w)
		}
		s, err := slack.New(p)
		if err != nil {
			t.Fatal(err)
		}
		each := make([]int, p.Layers)
		for l := range each {
			each[l] = max(reads, 0) % 1000
		}
		d, err := s.Begin(slack.Request{Input: max(input, 0), Prefix: max(prefix, 0), Reads: each})
		if err != nil {
			t.Fatal(err)
		}
		left := len(each) * each[0]
		count := func(d slack.Decision) {
			for _, l := range d.Launches {
				left -= l.IOCBs
			}
		}
		count(d)
		for l := range each {
			d, err := s.Layer(l)
			if err != nil {
				t.Fatal(err)
			}
			count(d)
		}
		if left != 0 {
			t.Fatalf("%d reads are left after the last layer", left)
		}
	})
}

// TestDocumented: the example in the document is a profile.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/gpu-store.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(text), "```json\n")
	example, _, ended := strings.Cut(example, "```")
	if !found || !ended {
		t.Fatal("no example")
	}
	if _, err := slack.Parse([]byte(example)); err != nil {
		t.Error(err)
	}
}
