package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/block"
	"cascadekv/internal/buildinfo"
	"cascadekv/internal/cli"
	"cascadekv/internal/simulate"
	"cascadekv/internal/trace"
)

const someStats = `{"names":3,"blocks":2,"bytes_referenced":3072,"bytes_stored":2048,"hits":30,"misses":10,"puts":5,"duplicates":1,
"tiers":[{"name":"shm","policy":"prefix","usage":{"Capacity":4096,"Used":2048,"Payload":2000,"Blocks":2},"hits":30},
{"name":"lustre","usage":{"Capacity":0,"Used":512,"Payload":512,"Blocks":1}}],
"namespaces":[{"name":"redis/0","names":3,"bytes_referenced":3072,"hits":30,"misses":10}],"uptime_seconds":61.5,"version":"v1"}`

func TestPutGetProbe(t *testing.T) {
	f := &fakeRank{}
	socket := startRank(t, f)
	run := func(in string, args ...string) outcome {
		return cascadeCommand(in, nil, append(args, "--socket", socket)...)
	}
	dir := t.TempDir()
	keyFile, valueFile := filepath.Join(dir, "k"), filepath.Join(dir, "v")
	for name, text := range map[string]string{keyFile: "key\x00data", valueFile: "value data"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	id := block.Sum(block.Bits128, []byte("key\x00data"), []byte("value data")).String()

	if got := run("", "put", keyFile, valueFile); got.status != cli.OK || got.out != id+"\n" {
		t.Errorf("put of two files: %+v, want %s", got, id)
	}
	if got := run("", "get", id); got.status != cli.OK || got.out != "key\x00datavalue data" {
		t.Errorf("get: %+v", got)
	}
	// The namespace of no letters is one like others, and not the default.
	if got := run("", "put", "--key", "k0", "--namespace", "", "--json", keyFile); !strings.Contains(got.out, `"namespace": ""`) || !slices.Equal(f.last()[3:], []string{"NS", ""}) {
		t.Errorf("put without a namespace: %+v, %q", got, f.last())
	}
	if got := run("", "get", "k0", "--namespace", "", "--json"); !strings.Contains(got.out, `"namespace": ""`) || !slices.Equal(f.last(), []string{"CASCADE.GET", "NS", "", "k0"}) {
		t.Errorf("get without a namespace: %+v, %q", got, f.last())
	}
	if got := run("", "get", "--json", id); !strings.Contains(got.out, `"namespace": "redis/0"`) {
		t.Errorf("get in the namespace of Redis: %+v", got)
	}
	if got := run("from stdin", "put", "--key", "k2", "--namespace", "m", "--parent", "k1", "--prefix", "--bound", "--ttl", "2"); got.status != cli.OK {
		t.Errorf("put of stdin: %+v", got)
	}
	want := []string{"CASCADE.PUT", "k2", "from stdin", "NS", "m", "PARENT", "k1", "PREFIX", "BOUND", "PX", "2000"}
	if got := f.last(); !slices.Equal(got, want) {
		t.Errorf("the rank was asked %q, want %q", got, want)
	}
	output := filepath.Join(dir, "out")
	got := run("", "get", "k2", "--namespace", "m", "-o", output, "--json")
	text, err := os.ReadFile(output)
	if err != nil || string(text) != "from stdin" || got.status != cli.OK {
		t.Errorf("get -o: %+v, %q, %v", got, text, err)
	}
	var meta struct {
		ID    string `json:"id"`
		Bytes int    `json:"bytes"`
	}
	if err := json.Unmarshal([]byte(got.out), &meta); err != nil || meta.Bytes != 10 || meta.ID != block.Sum(128, []byte("from stdin")).String() {
		t.Errorf("get --json: %v in %q", err, got.out)
	}
	if got := run("", "probe", "--namespace", "m", "k2", "k3"); got.status != cli.OK || got.out != "1 of 2 keys, 10 B: 1 in shm\n" {
		t.Errorf("probe: %+v", got)
	}
	if got := run("", "probe", "--json", "k2"); got.status != exitMiss || !strings.Contains(got.out, `"hits": 0`) {
		t.Errorf("probe of a miss: %+v", got)
	}
	if got := run("", "get", "--id", id); got.status != exitMiss {
		t.Errorf("get --id of a rank that knows no ids: %+v", got)
	}
	if got, want := f.last(), []string{"CASCADE.GET", "NS", "\x00contents", id}; !slices.Equal(got, want) {
		t.Errorf("the rank was asked %q, want %q", got, want)
	}
	if got := run("", "get", "nothing"); got.status != exitMiss || got.out != "" || !strings.Contains(got.err, `"nothing"`) {
		t.Errorf("get of a miss: %+v", got)
	}
}

// TestPutAsksFirst: the bytes of a large block are sent to a rank that does not have them, or
// can not be asked, and to no other.
func TestPutAsksFirst(t *testing.T) {
	large := strings.Repeat("x", askFirst)
	id := block.Sum(block.Bits128, []byte(large)).String()
	for name, tc := range map[string]struct {
		known, data string
		want        []string
	}{
		"known":   {id, large, []string{"CASCADE.ALIAS"}},
		"unknown": {"another", large, []string{"CASCADE.ALIAS", "CASCADE.PUT"}},
		"before":  {"", large, []string{"CASCADE.ALIAS", "CASCADE.PUT"}},
		"small":   {"another", large[1:], []string{"CASCADE.PUT"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeRank{known: tc.known}
			got := cascadeCommand(tc.data, nil, "put", "--key", "k", "--parent", "p", "--socket", startRank(t, f))
			if want := block.Sum(block.Bits128, []byte(tc.data)).String() + "\n"; got.status != cli.OK || got.out != want {
				t.Errorf("%+v, want %s", got, want)
			}
			var asked []string
			for _, words := range f.asked {
				asked = append(asked, words[0])
				if words[1] != "k" || !slices.Equal(words[3:], []string{"NS", redisNamespace, "PARENT", "p"}) {
					t.Errorf("%s with %q", words[0], words[3:])
				}
			}
			if !slices.Equal(asked, tc.want) {
				t.Errorf("the rank was asked %q, want %q", asked, tc.want)
			}
		})
	}
}

// TestStatusOfAJob: what the ranks count as their own is added up, and a rank that does not
// answer is not hidden.
func TestStatusOfAJob(t *testing.T) {
	report := func(own cascade.Stats) dht.RankStatus {
		text, err := json.Marshal(own)
		if err != nil {
			t.Fatal(err)
		}
		return dht.RankStatus{Report: text}
	}
	got := jobRow([]dht.RankStatus{
		report(cascade.Stats{OwnStored: 3 << 20, OwnReferenced: 4 << 20, BytesStored: 9 << 20}), report(cascade.Stats{OwnReferenced: 2 << 20}), {Error: "away"},
	})
	if want := "3.00 MiB stored, 6.00 MiB referenced (2.00×) on the 2 of 3 ranks that answer"; got[1] != want {
		t.Errorf("%q, want %q", got[1], want)
	}
}

func TestStatus(t *testing.T) {
	f := &fakeRank{stats: someStats}
	socket := startRank(t, f)
	got := cascadeCommand("", nil, "status", "--socket", socket)
	for _, want := range []string{"v1, up 1m1s", "3 for 2 blocks", "1.50×", "75.0 %", "unbounded", "50.0 %", `"redis/0"`, "TIER", "NAMESPACE"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in:\n%s", want, got.out)
		}
	}
	if got.status != cli.OK || got.err != "" || strings.Contains(got.out, "LOST") {
		t.Errorf("%+v", got)
	}
	var stats rankStats
	if got := cascadeCommand("", nil, "status", "--json", "--socket", socket); json.Unmarshal([]byte(got.out), &stats) != nil || stats.Hits != 30 || got.err != "" {
		t.Errorf("status --json: %+v", got)
	}
}

func TestStatusHintsAtKeysThatNeverMatch(t *testing.T) {
	f := &fakeRank{stats: `{"puts":5000,"misses":5000,"lost":2,"namespaces":[{"name":"a","puts":5000,"aliases":4000,"misses":5000}]}`}
	socket := startRank(t, f)
	got := cascadeCommand("", nil, "status", "--socket", socket)
	if !strings.Contains(got.err, "PYTHONHASHSEED") || !strings.Contains(got.err, `"a"`) || !strings.Contains(got.out, "2 dirty blocks lost") {
		t.Errorf("%+v", got)
	}
}

func TestPassword(t *testing.T) {
	f := &fakeRank{stats: someStats, password: "hunter-2"}
	socket := startRank(t, f)
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("hunter-2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := cascadeCommand("", []string{"CASCADE_SOCKET=" + socket, "CASCADE_PASSWORD_FILE=" + file}, "status"); got.status != cli.OK {
		t.Errorf("with the password: %+v", got)
	}
	got := cascadeCommand("", []string{"CASCADE_SOCKET=" + socket}, "status")
	if got.status != cli.Failure || !strings.Contains(got.err, "password_file") {
		t.Errorf("without: %+v", got)
	}
}

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.toml")
	if err := os.WriteFile(bad, []byte("sockt = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		env    []string
		status int
		want   string
	}{
		"unknown verb":        {args: []string{"stats"}, status: cli.Usage, want: `"stats"`},
		"unknown flag":        {args: []string{"status", "--jsno"}, status: cli.Usage, want: "--jsno"},
		"missing key":         {args: []string{"get"}, status: cli.Usage, want: "cascade get KEY"},
		"id in a namespace":   {args: []string{"get", "--id", "--namespace", "m", "k"}, status: cli.Usage, want: "namespace"},
		"three files":         {args: []string{"put", "a", "b", "c"}, status: cli.Usage, want: "3 arguments"},
		"bound alone":         {args: []string{"put", "--bound", "a"}, status: cli.Usage, want: "--parent"},
		"stdin twice":         {args: []string{"put", "-", "-"}, status: cli.Usage, want: "only once"},
		"no rank":             {args: []string{"status", "--socket", dir + "/none"}, status: cli.Failure, want: "start one with cascaded"},
		"no file":             {args: []string{"put", dir + "/none"}, status: cli.Failure, want: dir + "/none"},
		"unknown variable":    {args: []string{"status", "--socket", dir + "/none"}, env: []string{"CASCADE_SOKET=x"}, status: cli.Failure, want: "did you mean CASCADE_SOCKET?"},
		"bad configuration":   {args: []string{"status", "--config", bad}, status: cli.Usage, want: "bad.toml:1"},
		"bad file to check":   {args: []string{"config", "check", bad}, status: cli.Failure, want: `did you mean "socket"`},
		"a short salt":        {args: []string{"trace", "record", "--salt", "secret"}, status: cli.Usage, want: "can be guessed"},
		"record backwards":    {args: []string{"trace", "record", "--for", "-1s"}, status: cli.Usage, want: "--for"},
		"blocks of nothing":   {args: []string{"trace", "record", "--block-tokens", "0"}, status: cli.Usage, want: "--block-tokens"},
		"record of nobody":    {args: []string{"trace", "record", "--socket", dir + "/none"}, status: cli.Failure, want: "none"},
		"no trace":            {args: []string{"trace", "replay"}, status: cli.Usage, want: "--trace"},
		"capacity":            {args: []string{"trace", "replay", "--trace", "x", "--capacity", "much"}, status: cli.Usage, want: "10%"},
		"one of several":      {args: []string{"trace", "replay", "--trace", "x", "--capacity", "0.1,much"}, status: cli.Usage, want: "10%"},
		"no capacity":         {args: []string{"trace", "replay", "--trace", "x", "--capacity", ""}, status: cli.Usage, want: "--capacity"},
		"policy of nobody":    {args: []string{"trace", "replay", "--trace", "x", "--policy", "fastest", "--simulate"}, status: cli.Usage, want: "prefix, "},
		"min with bytes":      {args: []string{"trace", "replay", "--trace", "x", "--policy", "min"}, status: cli.Usage, want: "add --simulate"},
		"model of bytes":      {args: []string{"trace", "replay", "--trace", "x", "--load-rate", "1GB"}, status: cli.Usage, want: "add --simulate"},
		"model of nothing":    {args: []string{"trace", "replay", "--trace", "x", "--simulate", "--load-rate", "0"}, status: cli.Usage, want: "load rate"},
		"simulated ranks":     {args: []string{"trace", "replay", "--trace", "x", "--policy", "all", "--ranks", "2"}, status: cli.Usage, want: "--ranks"},
		"hints of bytes":      {args: []string{"trace", "replay", "--trace", "x", "--hints", "given"}, status: cli.Usage, want: "add --simulate"},
		"hints of nobody":     {args: []string{"trace", "replay", "--trace", "x", "--hints", "some"}, status: cli.Usage, want: "neither none nor given"},
		"too wrong hints":     {args: []string{"trace", "replay", "--trace", "x", "--simulate", "--hints", "given", "--wrong-hints", "2"}, status: cli.Usage, want: "between 0 and 1"},
		"wrong, without any":  {args: []string{"trace", "replay", "--trace", "x", "--simulate", "--wrong-hints", "0.1"}, status: cli.Usage, want: "without --hints given"},
		"simulate a rank":     {args: []string{"trace", "replay", "--trace", "x", "--simulate", "--socket", "s"}, status: cli.Usage, want: "leave out --socket"},
		"nothing to simulate": {args: []string{"trace", "replay", "--trace", dir + "/none", "--simulate"}, status: cli.Failure, want: dir + "/none"},
		"live with a policy":  {args: []string{"trace", "replay", "--trace", "x", "--policy", "lru", "--socket", "s"}, status: cli.Usage, want: "--policy"},
		"no speed":            {args: []string{"trace", "replay", "--trace", "x", "--speed", "0"}, status: cli.Usage, want: "--speed 0 is not above 0"},
		"block of no bytes":   {args: []string{"trace", "replay", "--trace", "x", "--block-bytes", "0"}, status: cli.Usage, want: "--block-bytes"},
		"unreadable trace":    {args: []string{"trace", "info", "--trace", dir + "/none"}, status: cli.Failure, want: dir + "/none"},
		"unknown form":        {args: []string{"trace", "info", "--trace", "x", "--form", "csv"}, status: cli.Usage, want: "burstgpt"},
		"contradictory flags": {args: []string{"trace", "replay", "--trace", "x", "--no-lustre", "--lustre-dir", "y"}, status: cli.Usage, want: "exclude"},
	} {
		t.Run(name, func(t *testing.T) {
			got := cascadeCommand("", tc.env, tc.args...)
			if got.status != tc.status || !strings.Contains(got.err, tc.want) || got.out != "" {
				t.Errorf("%+v; want status %d and %q on standard error alone", got, tc.status, tc.want)
			}
		})
	}
}

func TestConfigVerbs(t *testing.T) {
	env := []string{"CASCADE_SHM_BYTES=2GiB"}
	show := cascadeCommand("", env, "config", "show", "--origin")
	if !strings.Contains(show.out, `shm.bytes = "2GiB"`) || !strings.Contains(show.out, "# environment CASCADE_SHM_BYTES") {
		t.Errorf("config show: %+v", show)
	}
	file := filepath.Join(t.TempDir(), "shown.toml")
	if err := os.WriteFile(file, []byte(show.out), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := cascadeCommand("", nil, "config", "check", file); got.status != cli.OK || got.out != "ok: "+file+"\n" {
		t.Errorf("what config show prints is not a valid file: %+v", got)
	}
	var all map[string]shownKey
	if got := cascadeCommand("", env, "config", "show", "--json"); json.Unmarshal([]byte(got.out), &all) != nil ||
		all["shm.bytes"].Value != "2GiB" || all["shm.bytes"].Reloadable || !all["lease"].Reloadable {
		t.Errorf("config show --json: %+v", got)
	}
	var checked struct {
		OK    bool   `json:"ok"`
		Error string `json:"error"`
	}
	got := cascadeCommand("", []string{"CASCADE_RANK=-1"}, "config", "check", "--json")
	if json.Unmarshal([]byte(got.out), &checked) != nil || checked.OK || !strings.Contains(checked.Error, "rank") || got.status != cli.Failure {
		t.Errorf("config check --json: %+v", got)
	}
}

// TestVariablesOfOthers: variables that set no key are reported by the verbs
// about the configuration, and stop none.
func TestVariablesOfOthers(t *testing.T) {
	env := []string{"CASCADE_SERVICE_HOST=10.0.0.1", "CASCADE_PORT=tcp://10.0.0.1:6380", "SCRATCH=/scratch/me", "CASCADE_LUSTRE_DIR=$SCRATCH/kv"}
	const want = "CASCADE_PORT, CASCADE_SERVICE_HOST"
	for _, verb := range []string{"show", "check"} {
		if got := cascadeCommand("", env, "config", verb); got.status != cli.OK || !strings.Contains(got.err, "warning: ") || !strings.Contains(got.err, want) {
			t.Errorf("config %s: %+v", verb, got)
		}
	}
	var checked struct {
		OK       bool     `json:"ok"`
		Warnings []string `json:"warnings"`
	}
	got := cascadeCommand("", env, "config", "check", "--json")
	if json.Unmarshal([]byte(got.out), &checked) != nil || !checked.OK || len(checked.Warnings) != 1 || !strings.Contains(checked.Warnings[0], want) {
		t.Errorf("config check --json: %+v", got)
	}
	got = cascadeCommand("", env, "doctor", "--socket", filepath.Join(t.TempDir(), "none"))
	if !strings.Contains(got.out, want) {
		t.Errorf("doctor: %+v", got)
	}
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("lustre.dir = \"$SCRATCH/kv\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := cascadeCommand("", append(env, "CASCADE_RANK=first"), "config", "check", file); got.status != cli.OK {
		t.Errorf("config check of a file by itself: %+v", got)
	}
}

func TestTraceVerbs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl.gz")
	if got := cascadeCommand("", nil, "trace", "synth", "-o", file, "--requests", "200", "--json"); got.status != cli.OK || !strings.Contains(got.out, `"requests": 200`) {
		t.Fatalf("synth: %+v", got)
	}
	var info struct {
		Requests int     `json:"requests"`
		Hit      float64 `json:"hit_ratio_blocks"`
	}
	if got := cascadeCommand("", nil, "trace", "info", "--trace", file, "--json"); json.Unmarshal([]byte(got.out), &info) != nil || info.Requests != 200 {
		t.Fatalf("info: %+v", got)
	}
	for flag, ok := range map[string]bool{"--zipf=0": true, "--zipf=-1": false, "--turns=0": false, "--requests=0": false, "--system-prompts=0": false, "--think-time=0s": false, "--think-time=1s": true, "--max-input-tokens=100": false} {
		got := cascadeCommand("", nil, "trace", "synth", "-o", filepath.Join(t.TempDir(), "s.jsonl"), "--requests", "10", flag)
		if (got.status == cli.OK) != ok || !ok && got.status != cli.Usage {
			t.Errorf("synth %s: %+v", flag, got)
		}
	}
	html := filepath.Join(t.TempDir(), "r.html")
	got := cascadeCommand("", nil, "trace", "replay", "--trace", file, "--block-bytes", "1KiB", "--no-lustre", "--json", "--html", html)
	var result struct {
		Requests int                        `json:"requests"`
		Blocks   int                        `json:"blocks"`
		Hit      float64                    `json:"hit_ratio_blocks"`
		Tokens   *float64                   `json:"hit_ratio_tokens"`
		Dedup    *float64                   `json:"dedup_ratio"`
		Wrong    *int64                     `json:"wrong_bytes"`
		Tiers    map[string]json.RawMessage `json:"tiers"`
	}
	if err := json.Unmarshal([]byte(got.out), &result); err != nil || got.status != cli.OK {
		t.Fatalf("replay: %v, %+v", err, got)
	}
	if result.Requests != 200 || result.Hit != info.Hit || result.Tokens == nil || result.Dedup == nil || result.Wrong == nil || *result.Wrong != 0 || result.Tiers["shm"] == nil {
		t.Errorf("replay with room for all hits %v of the blocks, the trace allows %v:\n%s", result.Hit, info.Hit, got.out)
	}
	if text, err := os.ReadFile(html); err != nil || !strings.Contains(string(text), "<html") {
		t.Errorf("report: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(shmDir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestSimulateVerb: several capacities or all policies are simulated; two fields of the JSON
// are what other tools read.
func TestSimulateVerb(t *testing.T) {
	dir := t.TempDir()
	file, html := filepath.Join(dir, "t.jsonl"), filepath.Join(dir, "r.html")
	if got := cascadeCommand("", nil, "trace", "synth", "-o", file, "--requests", "300"); got.status != cli.OK {
		t.Fatalf("synth: %+v", got)
	}
	type result struct {
		Capacities []float64            `json:"capacities"`
		Policies   map[string][]float64 `json:"policies"`
		AgainstLRU map[string]struct {
			Cache []float64 `json:"cache_for_lru_hits"`
		} `json:"against_lru"`
		TTFT *simulate.TTFT `json:"ttft"`
	}
	run := func(args ...string) (r result, got outcome) {
		got = cascadeCommand("", nil, append([]string{"trace", "replay", "--trace", file, "--json"}, args...)...)
		if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.status != cli.OK {
			t.Fatalf("%v: %v, %+v", args, err, got)
		}
		return r, got
	}
	r, got := run("--policy", "all", "--capacity", "0.1,40%", "--html", html)
	if !slices.Equal(r.Capacities, []float64{0.1, 0.4}) || r.TTFT != nil || len(r.Policies) != len(simulate.Policies())+1 || got.err != "report: "+html+"\n" {
		t.Errorf("all policies: %+v", got)
	}
	for _, name := range append(simulate.Policies(), simulate.Min) {
		if hits := r.Policies[name]; len(hits) != 2 || hits[0] <= 0 || hits[1] > r.Policies[simulate.Min][1] || len(r.AgainstLRU[name].Cache) != 2 {
			t.Errorf("%s: %v, beside LRU %+v", name, hits, r.AgainstLRU[name])
		}
	}
	if text, err := os.ReadFile(html); err != nil || !strings.Contains(string(text), "Hits over capacity") {
		t.Errorf("report: %v", err)
	}
	r, got = run("--policy", "paper", "--capacity", "0.1", "--simulate", "--prefill-rate", "5000", "--limit", "200")
	if len(r.Policies) != 3 || r.TTFT == nil || r.TTFT.PrefillTokensPerSecond != 5000 || len(r.TTFT.Policies["paper"]) != 1 ||
		!strings.Contains(got.err, "assumed: --load-rate 20GiB") || strings.Contains(got.err, "--prefill-rate") {
		t.Errorf("one policy at one capacity: %+v", got)
	}
	// A replay of bytes finds the same. It goes as fast as it can, so this does not hold for
	// policies that go by the time.
	simulated, _ := run("--policy", "lru", "--capacity", "0.2", "--simulate")
	got = cascadeCommand("", nil, "trace", "replay", "--trace", file, "--json", "--policy", "lru", "--capacity", "0.2", "--block-bytes", "1KiB", "--no-lustre")
	var moved struct {
		Hits float64 `json:"hit_ratio_blocks"`
	}
	if err := json.Unmarshal([]byte(got.out), &moved); err != nil || math.Abs(moved.Hits-simulated.Policies["lru"][0]) > 0.001 {
		t.Errorf("a store hits %v, the simulated tier %v; %v", moved.Hits, simulated.Policies["lru"], err)
	}
	table := cascadeCommand("", nil, "trace", "replay", "--trace", file, "--policy", "lru,prefix", "--capacity", "0.1,0.2", "--engines", "4")
	for _, want := range []string{"hits / LRU", "LRU→MIN closed", "prefix", "min", "4 engines"} {
		if !strings.Contains(table.out, want) {
			t.Errorf("no %q in:\n%s", want, table.out)
		}
	}
}

func TestOutputErrorsAreReported(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: broken{}, err: io.Discard}
	if got := a.run(context.Background(), []string{"config", "show"}); got != cli.Failure {
		t.Errorf("config show into a broken pipe: exit status %d", got)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	var v buildinfo.Info
	if got := cascadeCommand("", nil, "version", "--json"); json.Unmarshal([]byte(got.out), &v) != nil || v.Go == "" || v.Platform == "" {
		t.Errorf("version: %+v", got)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := cascadeCommand("", nil, "completion", shell); got.status != cli.OK || !strings.Contains(got.out, "cascade") {
			t.Errorf("completion %s: %+v", shell, got)
		}
	}
}

// TestOddTrace: a trace that leaves things open is read, and one line says what
// was assumed; the JSON has it too.
func TestOddTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "odd.jsonl")
	text := `{"session_id": 1, "timestamp": 0.25, "input_length": 700, "hash_ids": [1]}
{"session_id": 1, "delay": 1500, "input_length": 1024, "output_length": 2, "hash_ids": [1, 2]}
{"session_id": 1, "timestamp": 9000, "input_length": 1536, "output_length": 2, "hash_ids": [1, 2, 1]}
{"session_id": 1, "timestamp": 9000, "input_length": 300, "output_length": 2, "hash_ids": []}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := cascadeCommand("", nil, "trace", "info", "--trace", file, "--json")
	var info trace.Info
	want := trace.Assumed{Fractions: 1, Delays: 1, NoOutput: 1, FullBlocks: 2, RepeatedIDs: 1}
	if err := json.Unmarshal([]byte(got.out), &info); err != nil || info.Assumed != want || info.Requests != 4 || info.Milliseconds != 9000 {
		t.Errorf("%+v, %v in %s", info, err, got.out)
	}
	for _, args := range [][]string{{"info"}, {"replay", "--block-bytes", "1KiB", "--no-lustre"}} {
		got := cascadeCommand("", nil, append([]string{"trace", args[0], "--trace", file}, args[1:]...)...)
		if got.status != cli.OK || strings.Count(got.err, "assumed: ") != 1 || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%s: status %d, on standard error: %q", args[0], got.status, got.err)
		}
	}
	got = cascadeCommand("", nil, "trace", "info", "--trace", file, "--seconds", "--json")
	if err := json.Unmarshal([]byte(got.out), &info); err != nil || info.Milliseconds != 8999750 {
		t.Errorf("in seconds: %+v, %v", info, err)
	}
}
