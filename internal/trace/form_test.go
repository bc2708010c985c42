package trace

import (
	"bytes"
	"encoding/csv"
	"errors"
	"slices"
	"strings"
	"testing"
)

const azureText = headerAzure + "\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
const headerAzure = "TIMESTAMP,ContextTokens,GeneratedTokens"

// forms are files of each form and what is read of them.
var forms = map[string]struct {
	text    string
	form    Form
	want    []Request
	assumed Assumed
}{
	"azure 2023": {azureText, Azure, []Request{at(0, 4808, 10, nil), at(52, 3180, 8, nil)}, Assumed{LengthsOnly: 2, Fractions: 2}},
	"azure 2024": {"\ufeff" + headerAzure + "\r\n2024-05-12 00:00:00.001+00:00,200,20\r\n2024-05-12 00:01:00+00:00,300,30\r\n", Azure,
		[]Request{at(0, 200, 20, nil), at(59999, 300, 30, nil)}, Assumed{LengthsOnly: 2}},
	"azure, other order of columns": {"GeneratedTokens,\"TIMESTAMP\",x,ContextTokens\n1,2024-05-12T00:00:01Z,,7\n\n2,2024-05-12T00:00:00Z,,8", Azure,
		[]Request{at(0, 7, 1, nil), at(0, 8, 2, nil)}, Assumed{LengthsOnly: 2, OutOfOrder: 1}},
	"burstgpt": {"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45.5,\"GPT-4, \"\"new\"\"\",1087,0,1317,API log\n",
		BurstGPT, []Request{at(0, 472, 18, nil), at(40500, 1087, 0, nil)}, Assumed{LengthsOnly: 2}},
	"burstgpt with sessions": {"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n" +
		"19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440161.0,,2,ChatGPT,36,29,65,API log\n", BurstGPT,
		[]Request{{InputTokens: 906, OutputTokens: 446, Session: "1722ac82"}, at(51000, 36, 29, nil)}, Assumed{LengthsOnly: 2}},
	"mooncake with hints": {`{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2], "session_id": "a\"", "shared_blocks": 1, "pause": 30}`, Mooncake,
		[]Request{{Timestamp: 1, InputTokens: 600, OutputTokens: 1, Hashes: []uint64{1, 2}, Session: `a"`, SharedBlocks: 1, Pause: 30}}, Assumed{}},
	"aiperf": {`{"session_id":"a","input_length":600,"output_length":100,"hash_ids":[1,2],"timestamp":10.0,"group_id":3}
{"session_id":"a","input_length":400,"output_length":5,"hash_ids":[7],"delay":20.0}
{"session_id":"b","input_length":512,"output_length":5,"hash_ids":[1],"timestamp":15.0,"group_id":4}`, Aiperf,
		[]Request{{Timestamp: 10, InputTokens: 600, OutputTokens: 100, Hashes: []uint64{1, 2}, Session: "a", Group: "3"},
			{Timestamp: 30, InputTokens: 1100, OutputTokens: 5, Hashes: []uint64{1, 0, 0}, Session: "a", Group: "3"},
			{Timestamp: 15, InputTokens: 512, OutputTokens: 5, Hashes: []uint64{1}, Session: "b", Group: "4"}},
		Assumed{Delays: 1, Accumulated: 1, OutOfOrder: 1}},
	"new tokens only, in Mooncake's form": {`{"session_id":"a","input_length":600,"output_length":100,"hash_ids":[1,2],"timestamp":10}
{"session_id":"a","input_length":400,"output_length":5,"hash_ids":[7],"delay":20}`, Mooncake,
		[]Request{{Timestamp: 10, InputTokens: 600, OutputTokens: 100, Hashes: []uint64{1, 2}, Session: "a"},
			{Timestamp: 30, InputTokens: 400, OutputTokens: 5, Hashes: []uint64{7}, Session: "a"}}, Assumed{Delays: 1, OtherHeads: 1}},
	"only a header": {headerAzure, Azure, nil, Assumed{}},
}

// TestForms: each form is recognised by its first line, plain and compressed,
// and is read the same when it is named. An expected id of 0 is any.
func TestForms(t *testing.T) {
	for name, c := range forms {
		t.Run(name, func(t *testing.T) {
			for i, data := range [][]byte{[]byte(c.text), compress(t, c.text), []byte(c.text)} {
				var o ReaderOptions
				if i == 2 {
					o.Form = c.form
				}
				r, err := NewReader(bytes.NewReader(data), name, o)
				if err != nil {
					t.Fatal(err)
				}
				all, err := readAll(r, 0)
				if err != nil || r.Form() != c.form || r.Assumed() != c.assumed {
					t.Fatalf("%v in form %q, assumed %+v, want %q and %+v", err, r.Form(), r.Assumed(), c.form, c.assumed)
				}
				if len(all) != len(c.want) {
					t.Fatalf("%d requests, want %d", len(all), len(c.want))
				}
				for i, got := range all {
					for k, want := range c.want[i].Hashes {
						if want == 0 && k < len(got.Hashes) {
							got.Hashes[k] = 0
						}
					}
					if !same(got, c.want[i]) {
						t.Errorf("request %d is %+v, want %+v", i, got, c.want[i])
					}
				}
			}
		})
	}
}

// TestAccumulatedPrompts: in aiperf's form a turn's prompt continues the one
// before it: its whole blocks stay, the partial one is another, and sessions
// share no more than their first prompts do.
func TestAccumulatedPrompts(t *testing.T) {
	text := `{"session_id":"a","input_length":1100,"output_length":100,"hash_ids":[1,2,3],"timestamp":0,"group_id":0}
{"session_id":"b","input_length":1100,"output_length":100,"hash_ids":[1,2,3],"timestamp":0,"group_id":0}
{"session_id":"a","input_length":400,"output_length":300,"hash_ids":[9],"delay":1}
{"session_id":"b","input_length":400,"output_length":300,"hash_ids":[9],"delay":1}
{"session_id":"a","input_length":100,"output_length":10,"hash_ids":[10],"delay":1}
{"session_id":"a","input_length":1300,"output_length":10,"hash_ids":[1,2,11],"timestamp":9}`
	r, err := NewReader(strings.NewReader(text), "f", ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := readAll(r, 0)
	if err != nil {
		t.Fatal(err)
	}
	second, other, third := all[2], all[3], all[4]
	if second.InputTokens != 1600 || third.InputTokens != 2000 || len(second.Hashes) != 4 || len(third.Hashes) != 4 {
		t.Fatalf("the prompts have %d and %d tokens, %d and %d blocks", second.InputTokens, third.InputTokens, len(second.Hashes), len(third.Hashes))
	}
	if !slices.Equal(second.Hashes[:2], []uint64{1, 2}) || second.Hashes[2] == 3 {
		t.Errorf("the second prompt is %v: the first two blocks are those of the first prompt, the third has more tokens", second.Hashes)
	}
	if !slices.Equal(second.Hashes[:3], third.Hashes[:3]) || second.Hashes[3] == third.Hashes[3] {
		t.Errorf("prompts %v and %v share three whole blocks, and not the last", second.Hashes, third.Hashes)
	}
	if slices.Equal(second.Hashes[2:3], other.Hashes[2:3]) {
		t.Error("two sessions share a block behind different answers")
	}
	if !slices.Equal(all[5].Hashes, []uint64{1, 2, 11}) {
		t.Errorf("a line that begins as the session did has a whole prompt, got %v", all[5].Hashes)
	}
}

func TestFormsRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		form    Form
		line    int
		problem string
		remedy  string
	}{
		"neither":               {"a,b,c\n1,2,3\n", "", 1, "column 1: invalid character 'a'", "or begin a CSV file with TIMESTAMP,"},
		"no header":             {"2023-11-16 18:17:03,4808,10\n", Azure, 1, `no column "timestamp"`, headerAzure},
		"column missing":        {"Timestamp,Request tokens\n", BurstGPT, 1, `no column "response tokens"`, "Request tokens,Response tokens"},
		"time":                  {headerAzure + "\nnoon,1,2\n", "", 2, "column 1 has the text noon, want a time like 2023-11-16 18:17:03", "4808,10"},
		"tokens":                {headerAzure + "\n2024-05-12 00:00:00,many,2\n", "", 2, "column 21 has the text many, want a whole number, not negative, for contexttokens", "4808,10"},
		"not a number":          {headerAzure + "\n2024-05-12 00:00:00,NaN,2\n", "", 2, "the text NaN", ""},
		"negative":              {headerAzure + "\n2024-05-12 00:00:00,1,-2\n", "", 2, "not negative, for generatedtokens", ""},
		"too few cells":         {headerAzure + "\n2024-05-12 00:00:00,1,2\n2024-05-12 00:00:00,1", "", 3, "has 2 cells, want 3", ""},
		"quotation mark":        {headerAzure + "\n\"2024-05-12 00:00:00,1,2\n", "", 2, "quotation mark is not closed", ""},
		"seconds":               {"Timestamp,Request tokens,Response tokens\n1e30,1,2\n", "", 2, "timestamp is above", "ChatGPT"},
		"shared beyond the end": {`{"input_length": 600, "hash_ids": [1, 2], "shared_blocks": 3}`, "", 1, "3 blocks are shared, the prompt has 2", "leading"},
		"grown beyond bounds": {`{"session_id":"a","input_length":1,"output_length":2147483647,"hash_ids":[1],"timestamp":0,"group_id":3}
{"session_id":"a","input_length":1,"output_length":2147483647,"hash_ids":[2],"delay":0}
{"session_id":"a","input_length":1,"output_length":2147483647,"hash_ids":[3],"delay":0}`, "", 2, "has grown to", "lengths"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(c.text), "f.csv", ReaderOptions{Form: c.form, BlockTokens: blockTokensFor(name)})
			if err == nil {
				_, err = readAll(r, 0)
			}
			line, ok := errors.AsType[*LineError](err)
			if !ok || line.File != "f.csv" || line.Line != c.line || !strings.Contains(line.Problem, c.problem) || !strings.Contains(line.Remedy, c.remedy) || line.Remedy == "" {
				t.Errorf("got %v\nwant %q on line %d, with a remedy that has %q", err, c.problem, c.line, c.remedy)
			}
		})
	}
}

// blockTokensFor makes small blocks where a prompt is to have too many.
func blockTokensFor(name string) int {
	if name == "grown beyond bounds" {
		return 16
	}
	return 0
}

// TestHintsSurvive: what is written is read.
func TestHintsSurvive(t *testing.T) {
	want := Request{Timestamp: 3, InputTokens: 600, OutputTokens: 2, Hashes: []uint64{3, 4}, Session: "über \"a\"\n", SharedBlocks: 2, Pause: 12}
	var out bytes.Buffer
	copyAll(t, NewWriter(&out), sourceOf(want))
	r, err := NewReader(&out, "f", ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := readAll(r, 0); err != nil || len(all) != 1 || !same(all[0], want) || r.Assumed() != (Assumed{}) {
		t.Errorf("got %+v, %v, want %+v", all, err, want)
	}
}

// FuzzForms holds the readers of all forms to their contract: typed errors, no
// request that replays could not take, and of CSV the cells that encoding/csv reads.
func FuzzForms(f *testing.F) {
	for _, seed := range forms {
		f.Add([]byte(seed.text), uint8(0))
		f.Add([]byte(seed.text), uint8(1+slices.Index(Forms(), seed.form)))
	}
	f.Add([]byte("timestamp,\"request tokens\",response tokens\n\"1\"\"\",2,3\n"), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, form uint8) {
		o := ReaderOptions{MaxLine: 1 << 16}
		if form > 0 {
			o.Form = Forms()[int(form-1)%len(Forms())]
		}
		r, err := NewReader(bytes.NewReader(data), "fuzz", o)
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
		for _, req := range all {
			n := len(req.Hashes)
			whole := n == blocks(req.InputTokens, BlockTokens) || n == req.InputTokens/BlockTokens
			if n == 0 && r.Form().LengthsOnly() {
				whole = true
			}
			if !whole || req.Timestamp < 0 || req.InputTokens < 0 || req.OutputTokens < 0 || req.SharedBlocks > n || req.SharedBlocks < 0 || req.Pause < 0 {
				t.Fatalf("read %+v", req)
			}
		}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimRight(line, "\r\n")
			row, whole := split(nil, line)
			got := make([]string, 0, len(row))
			for _, c := range row {
				got = append(got, c.text)
			}
			want, err := csv.NewReader(strings.NewReader(line)).Read()
			if err == nil && whole && !slices.Equal(got, want) {
				t.Fatalf("cells %q of %q, want %q", got, line, want)
			}
		}
	})
}
