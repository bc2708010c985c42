package fromtext

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/trace"
	"cascadekv/internal/trace/stats"
)

const shareGPT = `[
  {"id": "a", "conversations": [{"from": "human", "value": "aaaaaaaaaa"}, {"from": "gpt", "value": "bbbbbbbb"},
    {"from": "human", "value": "cccccccccccccccc"}, {"from": "gpt", "value": "dddd"}]},
  {"id": "cut", "conversations": [{"from": "gpt", "value": "an answer to nothing"}]},
  {"id": 7, "conversations": [{"from": "human", "value": "aaaaaaaaaaX"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "unanswered"}]}
]`

const openOrca = `{"id": "niv.1", "system_prompt": "You are a helpful assistant.", "question": "Why?", "response": "So."}
{"id": "niv.2", "system_prompt": "You are a helpful assistant.", "question": "Who?", "response": "Me."}
{"system_prompt": "", "question": "What?", "response": ""}
`

// read reads a whole source, and holds it to being a trace that our reader
// takes without assumptions.
func read(t testing.TB, s *Source, o Options) []trace.Request {
	t.Helper()
	var out bytes.Buffer
	w := trace.NewWriter(&out)
	var all []trace.Request
	for {
		var req trace.Request
		err := s.Next(&req)
		if err == io.EOF {
			break
		}
		if err == nil {
			err = w.Write(&req)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, req)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := trace.NewReader(&out, "written", trace.ReaderOptions{BlockTokens: o.BlockTokens})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		var req trace.Request
		if err := r.Next(&req); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n != len(all) || r.Assumed() != (trace.Assumed{}) || r.Form() != trace.Mooncake {
		t.Fatalf("read %d of %d requests, assumed %s", n, len(all), r.Assumed())
	}
	return all
}

func fromText(t testing.TB, data string, o Options) []trace.Request {
	t.Helper()
	s, err := New(strings.NewReader(data), "data.json", o)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, s, o)
}

// TestShareGPT: answered questions become requests with growing prompts; texts
// share ids up to the first block in which they differ.
func TestShareGPT(t *testing.T) {
	o := Options{CharsPerToken: 2, BlockTokens: 4, Active: 1, Even: true, RPS: 10}
	all := fromText(t, shareGPT, o)
	// Prompts in characters: "human\n" and 10 and "\n" are 17, then "gpt\n" and 8
	// and "\n" are 30, then 6 and 16 and 1 are 53. Blocks have 8.
	want := []trace.Request{
		{Timestamp: 0, InputTokens: 9, OutputTokens: 4, Hashes: []uint64{0, 1, 2}, Session: "a"},
		{Timestamp: 100, InputTokens: 27, OutputTokens: 2, Hashes: []uint64{0, 1, 3, 4, 5, 6, 7}, Session: "a"},
		{Timestamp: 200, InputTokens: 9, OutputTokens: 1, Hashes: []uint64{0, 1, 8}, Session: "7"},
	}
	if fmt.Sprint(all) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", all, want)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, shareGPT) // memory has no errors
	z.Close()
	if got := fromText(t, packed.String(), o); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("compressed: %v", got)
	}
	s, err := New(strings.NewReader(shareGPT), "f", o)
	if err != nil {
		t.Fatal(err)
	}
	read(t, s, o)
	if s.Skipped() != 1 {
		t.Errorf("%d conversations skipped, want the one without a question", s.Skipped())
	}
}

// TestChain: a block's id stands for all text before it, so the same text behind
// another head has other ids.
func TestChain(t *testing.T) {
	ask := func(head string) string {
		return fmt.Sprintf(`{"question": "%s%s", "response": "x"}`, head, strings.Repeat("the same text ", 20))
	}
	all := fromText(t, ask("A")+ask("B")+ask("A"), Options{CharsPerToken: 2, BlockTokens: 4, Active: 1})
	for i, h := range all[0].Hashes {
		if slices.Contains(all[1].Hashes, h) {
			t.Errorf("block %d has the same id behind another head", i)
		}
	}
	if !slices.Equal(all[0].Hashes, all[2].Hashes) {
		t.Errorf("the same text has ids %v and %v", all[0].Hashes, all[2].Hashes)
	}
}

// TestOpenOrca: a system prompt is shared, and known to be.
func TestOpenOrca(t *testing.T) {
	o := Options{CharsPerToken: 2, BlockTokens: 4, Even: true}
	all := fromText(t, openOrca, o)
	if len(all) != 3 || all[0].Session != "niv.1" || all[2].Session != "r3" || all[2].OutputTokens != 0 {
		t.Fatalf("%+v", all)
	}
	// "system\n", 28 and "\n" are 36 characters: four whole blocks of 8.
	if all[0].SharedBlocks != 4 || !slices.Equal(all[0].Hashes[:5], all[1].Hashes[:5]) || all[0].Hashes[5] == all[1].Hashes[5] {
		t.Errorf("%+v, %+v", all[0], all[1])
	}
	if all[2].SharedBlocks != 0 || all[2].Hashes[0] == all[0].Hashes[0] {
		t.Errorf("%+v", all[2])
	}
	list := "[" + strings.ReplaceAll(strings.TrimSpace(openOrca), "\n", ",\n") + "]"
	if got := fromText(t, list, o); fmt.Sprint(got) != fmt.Sprint(all) {
		t.Errorf("as a list: %v", got)
	}
}

// TestRoundRobin: seats take turns, and a session that ends makes room for the next.
func TestRoundRobin(t *testing.T) {
	var data strings.Builder
	for i := range 5 {
		var turns []string
		for k := range 1 + i {
			turns = append(turns, fmt.Sprintf(`{"from": "human", "value": "%d %d"}, {"from": "gpt", "value": "x"}`, i, k))
		}
		fmt.Fprintf(&data, `{"id": "%d", "conversations": [%s]}`+"\n", i, strings.Join(turns, ", "))
	}
	order := func(o Options) (names string) {
		for _, req := range fromText(t, data.String(), o) {
			names += req.Session
		}
		return names
	}
	if got, want := order(Options{Active: 2}), "012123234343444"; got != want {
		t.Errorf("two seats: %s, want %s", got, want)
	}
	if got, want := order(Options{Active: 1}), "011222333344444"; got != want {
		t.Errorf("one seat: %s, want %s", got, want)
	}
	if got, want := order(Options{Limit: 4}), "0123"; got != want {
		t.Errorf("a limit of 4: %s, want %s", got, want)
	}
	random := order(Options{Random: true, Active: 3, Seed: 5})
	if random == order(Options{Active: 3}) || random != order(Options{Random: true, Active: 3, Seed: 5}) || random == order(Options{Random: true, Active: 3, Seed: 6}) {
		t.Errorf("at random: %s", random)
	}
}

// TestRates: a rate changes when requests come, and nothing else; arrivals at
// random have the rate's mean and the spread of a Poisson process.
func TestRates(t *testing.T) {
	preset := func(o Options) []trace.Request {
		o.Limit = 3000
		s, err := NewPreset("loogle", o)
		if err != nil {
			t.Fatal(err)
		}
		return read(t, s, o)
	}
	slow, fast := preset(Options{RPS: 0.5, Seed: 3}), preset(Options{RPS: 8, Seed: 3})
	var gaps []float64
	for i := range slow {
		a, b := slow[i], fast[i]
		if math.Abs(float64(a.Timestamp)-16*float64(b.Timestamp)) > 40 {
			t.Fatalf("request %d comes at %d and %d, want 16 times", i, a.Timestamp, b.Timestamp)
		}
		a.Timestamp, b.Timestamp = 0, 0
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("request %d is %v and %v", i, a, b)
		}
		if i > 0 {
			gaps = append(gaps, float64(slow[i].Timestamp-slow[i-1].Timestamp)/1000)
		}
	}
	sum, squares := 0.0, 0.0
	for _, g := range gaps {
		sum += g
		squares += g * g
	}
	mean := sum / float64(len(gaps))
	if deviation := math.Sqrt(squares/float64(len(gaps)) - mean*mean); math.Abs(mean-2) > 0.1 || math.Abs(deviation-2) > 0.15 {
		t.Errorf("gaps have mean %.2f s and deviation %.2f s, want 2 and 2", mean, deviation)
	}
	if other := preset(Options{RPS: 0.5, Seed: 4}); other[0].InputTokens == slow[0].InputTokens && other[9].Timestamp == slow[9].Timestamp {
		t.Error("another seed makes the same trace")
	}
}

// TestPresets holds the presets to the paper's figures: number of tasks, the
// range of lengths, the hits of a tier that holds all, and of LRU in 2 Mi tokens.
func TestPresets(t *testing.T) {
	for _, name := range Presets() {
		p := presets[name]
		s, err := NewPreset(name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		all := read(t, s, Options{})
		tasks, long, least, most := map[string]bool{}, 0, math.MaxInt, 0
		for i, req := range all {
			task := req.Session[:strings.LastIndex(req.Session, "-")]
			if want := fmt.Sprintf("%s-%02d", name, i%p.Tasks); task != want {
				t.Fatalf("request %d is of task %s, want %s", i, task, want)
			}
			tasks[task] = true
			least, most = min(least, req.InputTokens), max(most, req.InputTokens)
			if req.InputTokens > 100_000 {
				long++
			}
		}
		figures, err := stats.Measure(&list{all}, stats.Options{})
		if err != nil {
			t.Fatal(err)
		}
		lru := map[int64]float64{} // hits by blocks
		hits := int64(0)
		for _, b := range figures.Distance.Bins {
			hits += b.Count
			lru[b.Most+1] = float64(hits) / float64(figures.Blocks)
		}
		t.Logf("%s: prompts of %d to %d tokens, mean %d, %.2f over 100k; hits of all %.4f, of LRU in 2 Mi tokens %.4f, in 256 Ki %.4f", name, least, most,
			figures.InputTokens/int64(figures.Requests), float64(long)/float64(len(all)), figures.HitRatioTokens, lru[4096], lru[512])
		if len(tasks) != p.Tasks || least < p.Low || most > p.High+200 || figures.Reparented != 0 {
			t.Errorf("%s: %d tasks, prompts of %d to %d tokens", name, len(tasks), least, most)
		}
		if math.Abs(figures.HitRatioTokens-p.SSD) > 0.02 || math.Abs(lru[4096]-p.DRAM) > 0.04 {
			t.Errorf("%s: a cache of all blocks hits %.4f, LRU in 2 Mi tokens %.4f; the paper has %.2f and %.2f", name, figures.HitRatioTokens, lru[4096], p.SSD, p.DRAM)
		}
	}
}

type list struct{ left []trace.Request }

func (l *list) Next(req *trace.Request) error {
	if len(l.left) == 0 {
		return io.EOF
	}
	*req, l.left = l.left[0], l.left[1:]
	return nil
}

func TestTextErrors(t *testing.T) {
	for name, c := range map[string]struct {
		data    string
		line    int
		problem string
	}{
		"not json":       {"hello", 1, "record 1: invalid character 'h'"},
		"second line":    {openOrca[:strings.Index(openOrca, "\n")+1] + "oops", 2, "record 2: invalid character 'o'"},
		"in a list":      {strings.Replace(shareGPT, `{"id": 7`, `{"id" 7`, 1), 5, "record 3: invalid character '7'"},
		"wrong kind":     {"\n\n" + `{"id": 1, "conversations": [{"from": "human", "value": 7}]}`, 3, "conversations.value is a number, want text"},
		"another kind":   {`{"id": 1, "conversations": "no"}`, 1, "conversations is a string, want a list"},
		"a number":       {"[\n1]", 2, "record 1: it is a number, want an object"},
		"something else": {`{"prompt": "a"}`, 1, "record 1 has neither conversations nor a question"},
		"cut short":      {openOrca[:len(openOrca)-10], 3, "record 3: the file ends too soon"},
		"list cut short": {shareGPT[:len(shareGPT)-3], 5, "ends too soon"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(strings.NewReader(c.data), "data.json", Options{})
			for err == nil {
				err = s.Next(new(trace.Request))
			}
			line, ok := errors.AsType[*trace.LineError](err)
			if !ok || line.File != "data.json" || line.Line != c.line || !strings.Contains(line.Problem, c.problem) || line.Remedy == "" || !errors.Is(err, trace.ErrBadTrace) {
				t.Errorf("got %v\nwant %q on line %d", err, c.problem, c.line)
			}
		})
	}
	for name, o := range map[string]Options{
		"short tokens": {CharsPerToken: 0.5}, "no number": {CharsPerToken: math.NaN()}, "rate": {RPS: -1}, "seats": {Active: -1},
		"limit": {Limit: -1}, "blocks": {BlockTokens: -1},
	} {
		if _, err := New(strings.NewReader(""), "f", o); !errors.Is(err, ErrBadOptions) {
			t.Errorf("%s: %v, want ErrBadOptions", name, err)
		}
	}
	if _, err := NewPreset("squad", Options{}); !errors.Is(err, ErrBadOptions) || !strings.Contains(err.Error(), "[leval loogle]") {
		t.Errorf("an unknown preset: %v", err)
	}
	if _, err := NewPreset("leval", Options{Active: 3}); !errors.Is(err, ErrBadOptions) {
		t.Errorf("seats of a preset: %v", err)
	}
}

// FuzzText: whatever the text, errors are typed, and what is made is a trace.
func FuzzText(f *testing.F) {
	for _, seed := range []string{shareGPT, openOrca, "[]", "[", `[{"id": null, "question": "?"}]`, "\x1f\x8b", "\ufeff{}", `{"question": "\ud800 é", "response": "b"}`} {
		f.Add(seed, uint16(2000), uint8(3), uint8(2))
	}
	f.Fuzz(func(t *testing.T, data string, milli uint16, tokens, seats uint8) {
		o := Options{CharsPerToken: 1 + float64(milli)/1000, BlockTokens: 1 + int(tokens), Active: 1 + int(seats)}
		s, err := New(strings.NewReader(data), "fuzz", o)
		if err == nil {
			var req trace.Request
			for err == nil {
				err = s.Next(&req)
			}
			if err == io.EOF {
				fromText(t, data, o)
				return
			}
		}
		if !errors.Is(err, trace.ErrBadTrace) {
			t.Fatalf("untyped error %v", err)
		}
	})
}
