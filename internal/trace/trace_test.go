package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cascadekv/internal/testing/tracetest"
)

// open opens a public trace.
func open(t testing.TB, name string) *Reader {
	t.Helper()
	r, err := Open(tracetest.Public(t, name), ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestPublicTraces(t *testing.T) {
	for name, want := range map[string]struct {
		info           Info
		blocks, tokens string
	}{
		"mooncake_conversation_trace.jsonl.gz": {Info{Requests: 12031, Blocks: 288500, UniqueBlocks: 182790, InputTokens: 144793823,
			HitBlocks: 105710, Milliseconds: 3536999}, "0.3664", "0.3736"},
		"mooncake_synthetic_trace.jsonl.gz": {Info{Requests: 3993, Blocks: 121877, UniqueBlocks: 43924, InputTokens: 61194628,
			HitBlocks: 77953, Milliseconds: 1022025}, "0.6396", "0.6512"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Summarize(open(t, name), 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			if b := fmt.Sprintf("%.4f", got.HitRatioBlocks); b != want.blocks {
				t.Errorf("hit ratio by blocks %s, want %s", b, want.blocks)
			}
			if b := fmt.Sprintf("%.4f", got.HitRatioTokens); b != want.tokens {
				t.Errorf("hit ratio by tokens %s, want %s", b, want.tokens)
			}
			got.HitRatioBlocks, got.HitRatioTokens, got.HitTokens, got.OutputTokens, got.LongestInput = 0, 0, 0, 0, 0
			if got != want.info {
				t.Errorf("got  %+v\nwant %+v", got, want.info)
			}
		})
	}
}

// Writing what was read gives the same bytes, so our traces are Mooncake's form.
func TestWriterIsMooncakes(t *testing.T) {
	const name = "mooncake_synthetic_trace.jsonl.gz"
	r := open(t, name)
	var ours bytes.Buffer
	w := NewWriter(&ours)
	copyAll(t, w, r)
	f, err := os.Open(tracetest.Public(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(ours.Bytes()), bytes.TrimSpace(theirs)) {
		t.Errorf("wrote %d bytes that differ from the %d read", ours.Len(), len(theirs))
	}
}

func copyAll(t testing.TB, w *Writer, src Source) {
	t.Helper()
	var req Request
	for {
		err := src.Next(&req)
		if err == io.EOF {
			break
		}
		if err == nil {
			err = w.Write(&req)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

const good = `{"timestamp": 5, "input_length": 513, "output_length": 7, "hash_ids": [1, 2]}`

func TestReaderAccepts(t *testing.T) {
	want := Request{Timestamp: 5, InputTokens: 513, OutputTokens: 7, Hashes: []uint64{1, 2}}
	for name, text := range map[string]string{
		"plain":             good + "\n",
		"no newline at end": good,
		"windows":           good + "\r\n",
		"empty lines":       "\n  \n" + good + "\n\n",
		"no spaces":         strings.ReplaceAll(good, " ", ""),
		"more spaces":       strings.NewReplacer(":", " :\t", ",", " , ", "[", "[ ", "}", " } ").Replace(good),
		"unknown fields":    `{"x": {"hash_ids": [{}, "}]\"\\", null]}, "type": "a", "y": -1.5e3, "z": [], ` + good[1:],
		"escaped name":      strings.Replace(good, "timestamp", `time\u0073tamp`, 1),
		"byte-order mark":   "\ufeff" + good,
		"floats":            strings.NewReplacer("5,", "5.0,", "513", "5.13e2", "7,", "7.0,", "1, 2", "1.0, 2.000").Replace(good),
		"delay not needed":  strings.Replace(good, "{", `{"session_id": null, "delay": 3, `, 1),
		"other order":       `{"hash_ids": [1, 2], "output_length": 7, "input_length": 513, "timestamp": 5, "last": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			for packing, data := range map[string][]byte{"plain": []byte(text), "gzip": compress(t, text)} {
				r, err := NewReader(bytes.NewReader(data), name, ReaderOptions{})
				if err != nil {
					t.Fatal(packing, err)
				}
				all, err := readAll(r, 0)
				if err != nil {
					t.Fatal(packing, err)
				}
				if len(all) != 1 || !same(all[0], want) {
					t.Errorf("%s: got %+v, want one %+v", packing, all, want)
				}
				if a := r.Assumed(); a != (Assumed{}) || a.String() != "" {
					t.Errorf("%s: assumed %+v: %s", packing, a, a)
				}
			}
		})
	}
}

func compress(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func same(a, b Request) bool {
	h := slices.Equal(a.Hashes, b.Hashes)
	a.Hashes, b.Hashes = nil, nil
	return h && reflect.DeepEqual(a, b)
}

func TestReaderRefuses(t *testing.T) {
	set := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, c := range map[string]struct{ line, problem string }{
		"not json":           {"hello", "column 1: invalid character 'h'"},
		"cut short":          {good[:len(good)-1], "ends too soon"},
		"cut short in list":  {good[:len(good)-2], "ends too soon"},
		"cut short in name":  {good[:40], "ends too soon"},
		"two objects":        {good + good, "column 78: invalid character '{' after top-level value"},
		"trailing comma":     {set("]}", "],}"), "invalid character '}' looking for beginning of object key"},
		"missing field":      {set(`, "hash_ids": [1, 2]`, ""), `"hash_ids" is missing`},
		"nothing for ids":    {set("[1, 2]", "null"), `"hash_ids" is missing`},
		"repeated field":     {set("{", `{"timestamp": 1, `), `"timestamp" appears twice`},
		"negative":           {set("5,", "-5,"), "a whole number, not negative, for timestamp"},
		"half a token":       {set("513", "513.5"), "a whole number, not negative, for input_length"},
		"half an id":         {set("1, 2", "1, 2.5"), "a whole number, not negative, for hash_ids"},
		"inexact id":         {set("1, 2", "1, 9007199254740993.0"), "beyond what a float distinguishes"},
		"inexact exponent":   {set("1, 2", "1, 1e16"), "beyond what a float distinguishes"},
		"huge exponent":      {set("5,", "1e400,"), "a whole number, not negative, for timestamp"},
		"large exponent":     {set("5,", "1e19,"), "timestamp is above"},
		"half an exponent":   {set("5,", "5e,"), "in exponent of numeric literal"},
		"truth for a number": {set("5,", "true,"), "a whole number, not negative, for timestamp"},
		"list for an id":     {set("1, 2", "1, [2]"), "a whole number, not negative, for hash_ids"},
		"negative length":    {set("7,", `"-7",`), "a whole number, not negative, for output_length"},
		"leading zero":       {set("5,", "05,"), "column 16: invalid character '5'"},
		"text for a number":  {set("5,", `"five",`), "whole number"},
		"a list of requests": {"[" + good + "]", "a list begins here"},
		"above int64":        {set("5,", "9223372036854775808,"), "timestamp is above"},
		"above uint64":       {set("1, 2", "1, 18446744073709551616"), "hash_ids is above"},
		"too many tokens":    {set("513", "99999999999"), "input_length is above"},
		"too few ids":        {set("513", "1537"), "need 4 hash ids, there are 2"},
		"too many ids":       {set("513", "512"), "need 1 hash ids, there are 2"},
		"bad unknown value":  {set("{", `{"x": tru, `), "in literal true"},
		"bad unknown nested": {set("{", `{"x": [1}], `), "after array element"},
		"missing value":      {set("{", `{"x":, `), "looking for beginning of value"},
		"string has no end":  {`{"x": "abc`, "ends too soon"},
		"too long":           {set("{", `{"x": "`+strings.Repeat("a", 200)+`", `), "longer than 200 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(good+"\n\n"+c.line), "f.jsonl", ReaderOptions{MaxLine: 200})
			if err != nil {
				t.Fatal(err)
			}
			all, err := readAll(r, 0)
			var line *LineError
			if !errors.As(err, &line) || !errors.Is(err, ErrBadTrace) {
				t.Fatalf("got %d requests and error %v, want a LineError", len(all), err)
			}
			if line.File != "f.jsonl" || line.Line != 3 || !strings.Contains(line.Problem, c.problem) || line.Remedy == "" {
				t.Errorf("got %v\nwant %q on line 3 of f.jsonl, with a remedy", err, c.problem)
			}
			if again := r.Next(new(Request)); again != err {
				t.Errorf("the next call returned %v, want the same error", again)
			}
		})
	}
}

func TestReaderBlockTokens(t *testing.T) {
	r, err := NewReader(strings.NewReader(strings.Replace(good, "513", "17", 1)), "f", ReaderOptions{BlockTokens: 16})
	if err != nil {
		t.Fatal(err)
	}
	var req Request
	if err := r.Next(&req); err != nil {
		t.Fatal(err)
	}
	if a, b, c := req.Tokens(0, 16), req.Tokens(1, 16), req.Tokens(2, 16); a != 16 || b != 1 || c != 0 {
		t.Errorf("blocks have %d, %d, %d tokens, want 16, 1, 0", a, b, c)
	}
}

func TestDamagedGzip(t *testing.T) {
	whole := compress(t, strings.Repeat(good+"\n", 5000))
	flipped := slices.Clone(whole)
	flipped[len(flipped)-6] ^= 1
	for name, data := range map[string][]byte{
		"header cut":    whole[:5],
		"cut short":     whole[:len(whole)/2],
		"trailer cut":   whole[:len(whole)-3],
		"bad checksum":  flipped,
		"garbage after": append(slices.Clone(whole), "garbage after it"...),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(bytes.NewReader(data), "f.gz", ReaderOptions{})
			if err == nil {
				_, err = readAll(r, 0)
			}
			if !errors.Is(err, ErrBadTrace) || !strings.Contains(err.Error(), "gzip -t") {
				t.Errorf("got %v, want ErrBadTrace with a remedy", err)
			}
		})
	}
}

func TestReaderDoesNotAllocate(t *testing.T) {
	r, err := NewReader(strings.NewReader(strings.Repeat(good+"\n", 2000)), "f", ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var req Request
	if n := testing.AllocsPerRun(1000, func() {
		if err := r.Next(&req); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a line, want none", n)
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none"), ReaderOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
}

func TestCreate(t *testing.T) {
	for name, file := range map[string]string{"plain": "t.jsonl", "compressed": "t.jsonl.gz"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), file)
			w, err := Create(path)
			if err != nil {
				t.Fatal(err)
			}
			want := Request{Timestamp: 1, InputTokens: 600, OutputTokens: 2, Hashes: []uint64{3, 1 << 63}}
			if err := w.Write(&want); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("before Close: %v, want no such file", err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			r, err := Open(path, ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if all, err := readAll(r, 0); err != nil || len(all) != 1 || !same(all[0], want) {
				t.Errorf("got %+v, %v, want %+v", all, err, want)
			}
		})
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(filepath.Join(dir, "t.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	w.Abort()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestSummarizeCountsReparented(t *testing.T) {
	src := sourceOf(Request{InputTokens: 1024, Hashes: []uint64{1, 2}}, Request{InputTokens: 1024, Hashes: []uint64{3, 2}},
		Request{InputTokens: 600, Hashes: []uint64{1, 2}})
	info, err := Summarize(src, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info.Reparented != 1 || info.HitBlocks != 2 || info.HitTokens != 600 || info.UniqueBlocks != 3 {
		t.Errorf("got %+v, want 1 reparented, 2 blocks and 600 tokens hit, 3 unique", info)
	}
}

type list struct{ left []Request }

func sourceOf(all ...Request) *list { return &list{all} }

func (l *list) Next(req *Request) error {
	if len(l.left) == 0 {
		return io.EOF
	}
	*req, l.left = l.left[0], l.left[1:]
	return nil
}

// FuzzReader holds the reader to encoding/json: it never accepts a line that
// encoding/json refuses or reads differently, and what it accepts survives
// being written and read again.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{good, good + "\n" + good, `{"a":"\ud800","timestamp":0,"input_length":0,"output_length":0,"hash_ids":[]}`,
		`{"x": [1, {"y": "}"}], ` + good[1:], "\x1f\x8b\x08", "{", "[1]", `{"timestamp":-1}`} {
		f.Add([]byte(seed))
	}
	f.Add(compress(f, good))
	for _, seed := range odd {
		f.Add([]byte(seed.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := NewReader(bytes.NewReader(data), "fuzz", ReaderOptions{MaxLine: 1 << 16, Form: Mooncake})
		if err != nil {
			if !errors.Is(err, ErrBadTrace) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		all, err := readAll(r, 1000)
		if err != nil && !errors.Is(err, ErrBadTrace) {
			t.Fatalf("untyped error %v", err)
		}
		if err != nil || bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			return
		}
		compareWithJSON(t, bytes.TrimPrefix(data, []byte("\ufeff")), all, r.Assumed() == Assumed{})
		var out bytes.Buffer
		w := NewWriter(&out)
		copyAll(t, w, sourceOf(all...))
		compareWithJSON(t, out.Bytes(), all, true)
	})
}

// compareWithJSON compares each line with a request; if the lines say all, by
// value.
func compareWithJSON(t *testing.T, data []byte, all []Request, whole bool) {
	t.Helper()
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatalf("accepted %q: %v", line, err)
		}
		if len(all) == 0 {
			return // beyond the limit of requests
		}
		if !whole {
			all = all[1:]
			continue
		}
		var ids []uint64
		var numbers []json.Number
		if err := json.Unmarshal(want["hash_ids"], &numbers); err != nil {
			t.Fatalf("read ids from %q: %v", line, err)
		}
		for _, n := range numbers {
			ids = append(ids, wholeNumber(t, n.String()))
		}
		if !slices.Equal(ids, all[0].Hashes) {
			t.Fatalf("read ids %v from %q, want %v", all[0].Hashes, line, ids)
		}
		for name, got := range map[string]int64{"timestamp": all[0].Timestamp, "input_length": int64(all[0].InputTokens),
			"output_length": int64(all[0].OutputTokens)} {
			if n := wholeNumber(t, string(bytes.TrimSpace(want[name]))); n != uint64(got) {
				t.Fatalf("read %s %d from %q, want %d", name, got, line, n)
			}
		}
		all = all[1:]
	}
}

// wholeNumber reads 5 and 5.0 and 50e-1.
func wholeNumber(t *testing.T, text string) uint64 {
	t.Helper()
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || x != math.Trunc(x) || x < 0 {
		t.Fatalf("%q was read as a whole number: %v", text, err)
	}
	return uint64(x)
}

func BenchmarkReader(b *testing.B) {
	var text bytes.Buffer
	src := open(b, "mooncake_conversation_trace.jsonl.gz")
	copyAll(b, NewWriter(&text), src)
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		r, err := NewReader(bytes.NewReader(text.Bytes()), "bench", ReaderOptions{})
		if err != nil {
			b.Fatal(err)
		}
		var req Request
		for err == nil {
			err = r.Next(&req)
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}

// readAll reads a whole trace, at most limit requests of it unless limit is 0.
func readAll(r *Reader, limit int) ([]Request, error) {
	var all []Request
	for limit <= 0 || len(all) < limit {
		var req Request
		if err := r.Next(&req); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		all = append(all, req)
	}
	return all, nil
}
