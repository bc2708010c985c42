package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"cascadekv/cascade"
	"cascadekv/internal/cli"
)

const (
	llamaSpace = "dtype=bf16,engine=vllm,model=meta-llama/Llama-3-8B"
	qwenSpace  = "Qwen3-0.6B-0123456789abcdef0123456789abcdef"

	spacesStats = `{"namespaces":[{"name":"redis/0","names":1,"bytes_referenced":5,"spilled":900,"spilled_bytes":1019,"spilled_estimate":true},
{"name":"` + llamaSpace + `","names":3,"bytes_referenced":3072,"puts":3,"hits":6,"misses":2},{"name":"` + qwenSpace + `","names":2,"bytes_referenced":2048}]}`
)

func TestModelOf(t *testing.T) {
	for ns, want := range map[string]string{
		llamaSpace: "meta-llama/Llama-3-8B", qwenSpace: "Qwen3-0.6B", "redis/0": "", "": "", "a=b": "",
		"Qwen3-0.6B-0123456789abcdef0123456789abcdeX": "", "-0123456789abcdef0123456789abcdef": "",
	} {
		if got := modelOf(ns); got != want {
			t.Errorf("the model of %q is %q, want %q", ns, got, want)
		}
	}
}

func TestChosen(t *testing.T) {
	all := []cascade.NamespaceStats{{Name: "a"}, {Name: "a*"}, {Name: "ab"}, {Name: llamaSpace}, {Name: qwenSpace}}
	for name, tc := range map[string]struct {
		chosen
		want []string
	}{
		"all":              {chosen{}, []string{"a", "a*", "ab", llamaSpace, qwenSpace}},
		"one":              {chosen{pattern: "a"}, []string{"a"}},
		"a name with star": {chosen{pattern: "a*"}, []string{"a*"}},
		"a pattern":        {chosen{pattern: "a?"}, []string{"a*", "ab"}},
		"a model":          {chosen{model: "meta-llama/Llama-3-8B"}, []string{llamaSpace}},
		"its last part":    {chosen{model: "Llama-3-8B"}, []string{llamaSpace}},
		"of another form":  {chosen{model: "Qwen3-0.6B"}, []string{qwenSpace}},
		"not a part of it": {chosen{model: "Llama"}, nil},
		"both":             {chosen{pattern: "dtype=*", model: "Qwen3-0.6B"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			some, err := tc.of(all)
			var got []string
			for _, n := range some {
				got = append(got, n.Name)
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
	all = append(all, cascade.NamespaceStats{Name: ""})
	for _, args := range [][]string{{}, {"--namespace", ""}} {
		var c chosen
		f := pflag.NewFlagSet("list", pflag.ContinueOnError)
		c.flags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		want := 1
		if len(args) == 0 {
			want = len(all)
		}
		if some, err := c.of(all); err != nil || len(some) != want || some[len(some)-1].Name != "" {
			t.Errorf("%q: %+v, %v, want %d, the namespace without a name among them", args, some, err, want)
		}
	}
	if _, err := (&chosen{pattern: strings.Repeat("a", 2000)}).of(all); err == nil {
		t.Error("a pattern of 2,000 bytes was taken")
	}
}

func TestListAndClear(t *testing.T) {
	f := &fakeRank{stats: spacesStats}
	socket := startRank(t, f)
	run := func(args ...string) outcome { return cascadeCommand("", nil, append(args, "--socket", socket)...) }

	if got := run("list"); got.status != cli.OK || !strings.Contains(got.out, llamaSpace) || !strings.Contains(got.out, "75.0 %") || strings.Count(got.out, "\n") != 4 {
		t.Errorf("list: %+v", got)
	}
	var listed struct{ Namespaces []namespaceReport }
	if got := run("list", "--model", "Qwen3-0.6B", "--json"); json.Unmarshal([]byte(got.out), &listed) != nil || len(listed.Namespaces) != 1 ||
		listed.Namespaces[0].Names != 2 || listed.Namespaces[0].Model != "Qwen3-0.6B" {
		t.Errorf("list --json: %+v", got)
	}
	if got := run("list", "--namespace", "none", "--json"); got.status != exitMiss || !strings.Contains(got.out, `"namespaces": []`) {
		t.Errorf("list of nothing: %+v", got)
	}

	// Names that only segments have count.
	for _, args := range [][]string{{"list"}, {"clear", "--namespace", "redis/0"}, {"status"}} {
		if got := run(args...); got.status != cli.OK || !strings.Contains(got.out, "about 901") || args[0] != "status" && !strings.Contains(got.out, "1.00 KiB") {
			t.Errorf("%s of names in segments alone: %+v", args[0], got)
		}
	}

	clears := func() (all []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, args := range f.asked {
			if args[0] == "CASCADE.CLEAR" {
				all = append(all, args[1])
			}
		}
		f.asked = nil
		return all
	}
	if got := run("clear"); got.status != cli.Usage || !strings.Contains(got.err, "--namespace '*'") {
		t.Errorf("clear of nothing named: %+v", got)
	}
	if got := run("clear", "--model", "Llama-3-8B"); got.status != cli.OK || !strings.Contains(got.out, "with --yes it is 1 namespace with 3 names, 3.00 KiB") || clears() != nil {
		t.Errorf("clear without --yes: %+v", got)
	}
	if got := run("clear", "--model", "Llama-3-8B", "--yes"); got.status != cli.OK || !slices.Equal(clears(), []string{llamaSpace}) || !strings.Contains(got.out, "cleared 1 namespace with 3 names") {
		t.Errorf("clear: %+v", got)
	}
	if got := run("clear", "--namespace", "*", "--yes", "--json"); got.status != cli.OK || len(clears()) != 3 || !strings.Contains(got.out, `"cleared": true`) {
		t.Errorf("clear of all: %+v", got)
	}
	// Earlier jobs may have left names of one that no rank counts.
	if got := run("clear", "--namespace", "gone", "--yes"); got.status != cli.OK || !slices.Equal(clears(), []string{"gone"}) {
		t.Errorf("clear of an unknown namespace: %+v", got)
	}
	if got := run("clear", "--model", "none", "--yes"); got.status != exitMiss || clears() != nil {
		t.Errorf("clear of an unknown model: %+v", got)
	}
}

func TestKeys(t *testing.T) {
	f := &fakeRank{}
	socket := startRank(t, f)
	run := func(args ...string) outcome { return cascadeCommand("", nil, append(args, "--socket", socket)...) }
	for _, key := range []string{"b", "a", "line\nfeed"} {
		if got := run("put", "--key", key, "--namespace", "m"); got.status != cli.OK {
			t.Fatalf("%+v", got)
		}
	}
	if got := run("keys", "--namespace", "m"); got.status != cli.OK || got.out != "a\nb\n\"line\\nfeed\"\n" {
		t.Errorf("keys: %+v", got)
	}
	if got := run("keys", "--namespace", "m", "--limit", "2", "--match", "*"); got.status != cli.OK || got.out != "a\nb\n" {
		t.Errorf("two keys: %+v", got)
	}
	var listed struct{ Keys []string }
	if got := run("keys", "--namespace", "m", "--json"); json.Unmarshal([]byte(got.out), &listed) != nil || !slices.Equal(listed.Keys, []string{"a", "b", `"line\nfeed"`}) {
		t.Errorf("keys --json: %+v", got)
	}
	if got := run("keys"); got.status != exitMiss || got.out != "" {
		t.Errorf("keys of nothing: %+v", got)
	}
	if got := run("keys", "--limit", "-1"); got.status != cli.Usage {
		t.Errorf("keys of less than none: %+v", got)
	}
}
