package trace

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// odd are lines that people have, what is read of them, and what is assumed. An
// expected id of 0 is any that no other line has.
var odd = map[string]struct {
	text    string
	want    []Request
	assumed Assumed
}{
	"no timestamp": {
		`{"timestamp": 7, "input_length": 512, "output_length": 1, "hash_ids": [1]}
		{"input_length": 512, "output_length": 2, "hash_ids": [2]}
		{"timestamp": null, "input_length": 512, "output_length": 2, "hash_ids": [3]}`,
		[]Request{at(7, 512, 1, []uint64{1}), at(7, 512, 2, []uint64{2}), at(7, 512, 2, []uint64{3})},
		Assumed{NoTimestamp: 2},
	},
	"no timestamp at all": {
		`{"input_length": 512, "output_length": 2, "hash_ids": [2]}`,
		[]Request{at(0, 512, 2, []uint64{2})}, Assumed{NoTimestamp: 1},
	},
	"no output_length": {
		`{"timestamp": 7, "input_length": 512, "hash_ids": [1]}
		{"timestamp": 7, "input_length": 512, "output_length": null, "hash_ids": [1]}`,
		[]Request{at(7, 512, 0, []uint64{1}), at(7, 512, 0, []uint64{1})}, Assumed{NoOutput: 2},
	},
	"no input_length": {
		`{"timestamp": 7, "output_length": 3, "hash_ids": [1, 2]}`,
		[]Request{at(7, 1024, 3, []uint64{1, 2})}, Assumed{NoInput: 1},
	},
	"seconds with fractions taken as milliseconds": {
		`{"timestamp": 0.4, "input_length": 1, "output_length": 1, "hash_ids": [1]}
		{"timestamp": 27482.501, "input_length": 1, "output_length": 1, "hash_ids": [1]}`,
		[]Request{at(0, 1, 1, []uint64{1}), at(27483, 1, 1, []uint64{1})}, Assumed{Fractions: 2},
	},
	"delays in sessions": {
		`{"session_id": "a", "timestamp": 100, "input_length": 1, "output_length": 1, "hash_ids": [1]}
		{"session_id": "a", "delay": 1000, "input_length": 1, "output_length": 1, "hash_ids": [1]}
		{"session_id": 5, "timestamp": 300, "input_length": 1, "output_length": 1, "hash_ids": [1]}
		{"session_id": 5, "delay": 10.0, "input_length": 1, "output_length": 1, "hash_ids": [1]}
		{"session_id": "a", "delay": 5, "input_length": 1, "output_length": 1, "hash_ids": [1]}`,
		[]Request{in("a", at(100, 1, 1, []uint64{1})), in("a", at(1100, 1, 1, []uint64{1})), in("5", at(300, 1, 1, []uint64{1})),
			in("5", at(310, 1, 1, []uint64{1})), in("a", at(1105, 1, 1, []uint64{1}))},
		Assumed{Delays: 3, OutOfOrder: 1},
	},
	"delays without sessions": {
		`{"timestamp": 100, "input_length": 1, "output_length": 1, "hash_ids": [1]}
		{"delay": 50, "input_length": 1, "output_length": 1, "hash_ids": [1]}`,
		[]Request{at(100, 1, 1, []uint64{1}), at(150, 1, 1, []uint64{1})}, Assumed{Delays: 1},
	},
	"ids of full blocks": {
		`{"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [1]}
		{"timestamp": 0, "input_length": 300, "output_length": 1, "hash_ids": []}
		{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}`,
		[]Request{at(0, 700, 1, []uint64{1}), at(0, 300, 1, nil), at(0, 1024, 1, []uint64{1, 2})}, Assumed{FullBlocks: 2},
	},
	"ids of single blocks": {
		`{"timestamp": 0, "input_length": 2048, "output_length": 1, "hash_ids": [1, 2, 1, 1]}`,
		[]Request{at(0, 2048, 1, []uint64{1, 2, 0, 0})}, Assumed{RepeatedIDs: 2},
	},
	"numbers in quotes": {
		`{"timestamp": "5", "input_length": "600.0", "output_length": "7", "hash_ids": ["1", 18446744073709551615]}`,
		[]Request{at(5, 600, 7, []uint64{1, 1<<64 - 1})}, Assumed{QuotedNumbers: 4},
	},
	"ids of another kind": {
		`{"timestamp": 5, "input_length": 1500, "output_length": 7, "hash_ids": ["a3f9", -1, "0x17"]}`,
		[]Request{at(5, 1500, 7, []uint64{0, 1<<64 - 1, 0})}, Assumed{TextIDs: 3},
	},
	"not sorted": {
		`{"timestamp": 5, "input_length": 1, "output_length": 7, "hash_ids": [1]}
		{"timestamp": 4, "input_length": 1, "output_length": 7, "hash_ids": [1]}`,
		[]Request{at(5, 1, 7, []uint64{1}), at(4, 1, 7, []uint64{1})}, Assumed{OutOfOrder: 1},
	},
}

func at(timestamp int64, input, output int, hashes []uint64) Request {
	return Request{Timestamp: timestamp, InputTokens: input, OutputTokens: output, Hashes: hashes}
}

func in(session string, r Request) Request {
	r.Session = session
	return r
}

// TestOddTraces: what people have is read, and what was assumed is counted.
func TestOddTraces(t *testing.T) {
	for name, c := range odd {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(c.text), name, ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all, err := readAll(r, 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) != len(c.want) {
				t.Fatalf("%d requests, want %d", len(all), len(c.want))
			}
			for i, got := range all {
				seen := map[uint64]bool{}
				for k, h := range got.Hashes {
					if seen[h] {
						t.Errorf("request %d has id %d twice", i, h)
					}
					seen[h] = true
					if k < len(c.want[i].Hashes) && c.want[i].Hashes[k] == 0 {
						got.Hashes[k] = 0
					}
				}
				if !same(got, c.want[i]) {
					t.Errorf("request %d is %+v, want %+v", i, got, c.want[i])
				}
			}
			if a := r.Assumed(); a != c.assumed || a.String() == "" || strings.Contains(a.String(), "\n") {
				t.Errorf("assumed %+v (%s), want %+v", a, a, c.assumed)
			}
		})
	}
}

// TestDerivedIDs: ids that are derived are those of the same prefix in other
// prompts, and of no other prefix.
func TestDerivedIDs(t *testing.T) {
	read := func(ids string) []uint64 {
		r, err := NewReader(strings.NewReader(`{"hash_ids": `+ids+`}`), ids, ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var req Request
		if err := r.Next(&req); err != nil {
			t.Fatal(err)
		}
		return req.Hashes
	}
	a, b := read(`[1, 2, 1, 3]`), read(`[1, 2, 1, 4]`)
	if !slices.Equal(a[:3], b[:3]) || a[3] != 3 || b[3] != 4 {
		t.Errorf("two prompts with three blocks in common are %v and %v", a, b)
	}
	if c := read(`[1, 5, 1]`); c[2] == a[2] {
		t.Errorf("two prefixes have the id %d", c[2])
	}
	if x, y := read(`["abc", "abd"]`), read(`["abc"]`); x[0] == x[1] || x[0] != y[0] {
		t.Errorf("text ids are %v and %v", x, y)
	}
}

// TestSeconds: a trace in seconds is read as one where the caller says so.
func TestSeconds(t *testing.T) {
	text := `{"timestamp": 12.3456, "input_length": 1, "output_length": 7, "hash_ids": [1]}
		{"timestamp": 1700000000, "input_length": 1, "output_length": 7, "hash_ids": [1]}
		{"delay": 0.5, "input_length": 1, "output_length": 7, "hash_ids": [1]}`
	r, err := NewReader(strings.NewReader(text), "f", ReaderOptions{Seconds: true})
	if err != nil {
		t.Fatal(err)
	}
	all, err := readAll(r, 0)
	if err != nil || all[0].Timestamp != 12346 || all[1].Timestamp != 1700000000000 || all[2].Timestamp != 1700000000500 {
		t.Errorf("%+v, %v", all, err)
	}
	r, err = NewReader(strings.NewReader(`{"timestamp": 9223372036854775, "input_length": 1, "output_length": 7, "hash_ids": [1]}
		{"timestamp": 9223372036854776, "input_length": 1, "output_length": 7, "hash_ids": [1]}`), "f", ReaderOptions{Seconds: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(r, 0); err == nil || !strings.Contains(err.Error(), "line 2: timestamp is above 9223372036854775") {
		t.Errorf("a timestamp beyond all bounds: %v", err)
	}
}

// TestCutShort: a file that ends too soon is refused, with what to do to read
// what is there.
func TestCutShort(t *testing.T) {
	whole := strings.Repeat(good+"\n", 3) + good[:50]
	random := make([]byte, 0, 1<<17) // does not compress, so that much is read before the cut
	for x := uint64(1); len(random) < 1<<17; x = scramble(x + weyl) {
		random = append(random, "0123456789abcdef"[x&15])
	}
	packed := compress(t, strings.Repeat(good+"\n", 3)+string(random))
	for name, data := range map[string][]byte{"plain": []byte(whole), "line cut in gzip": compress(t, whole), "gzip cut": packed[:len(packed)/2]} {
		r, err := NewReader(bytes.NewReader(data), "f", ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := readAll(r, 0)
		line, ok := errors.AsType[*LineError](err)
		if !ok || line.Line != 4 || !strings.Contains(line.Remedy, "the 3 requests before it with a limit of 3") {
			t.Errorf("%s: %d requests, %v", name, len(all), err)
		}
	}
}

// TestNoText: files that are no JSON Lines are named for what they are.
func TestNoText(t *testing.T) {
	for start, want := range map[string]string{
		"\xff\xfe{\x00": "UTF-16", "\xfe\xff\x00{": "UTF-16", "\x28\xb5\x2f\xfd": "zstd", "BZh91AY": "bzip2", "\xfd7zXZ\x00": "xz",
		"PK\x03\x04": "zip", "PAR1": "Parquet",
	} {
		_, err := NewReader(strings.NewReader(start+"more"), "f", ReaderOptions{})
		if !errors.Is(err, ErrBadTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", start, err, want)
		}
	}
}

// TestFitting: the remedy names a size of blocks that fits.
func TestFitting(t *testing.T) {
	r, err := NewReader(strings.NewReader(`{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5, 6, 7]}`), "f", ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(r, 0); err == nil || !strings.Contains(err.Error(), "(16 fits this line)") {
		t.Errorf("%v", err)
	}
}
