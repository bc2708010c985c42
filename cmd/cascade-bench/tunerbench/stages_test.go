package tunerbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/resp"
	"cascadekv/tiers"
)

// TestStages is a small comparison on a real rank: all that is asked for is found and
// right, and what both sides took is reported.
func TestStages(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds and runs cascaded; internal/testing/e2e has a shorter run")
	}
	bin, dir, steps := t.TempDir(), t.TempDir(), 0
	if out, err := exec.Command("go", "build", "-o", bin+"/", "cascadekv/cmd/cascaded").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	o := StagesOptions{Dir: dir, ShmDir: t.TempDir(), Requests: 10, Blocks: 16, Warm: 20, Memory: 4 << 20, Rounds: 1, NoPause: true,
		HitRates: []float64{0.2, 0.7}, Progress: func(done, total int) { steps = total - done }}
	if _, err := os.Stat("/dev/shm"); err == nil {
		o.ShmDir = ""
	}
	res, err := Stages(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if steps != 0 || len(res.Stages) != 2 || len(res.ByRound) != 1 || res.Warm != 320 || res.Paused || res.Rank == "" {
		t.Errorf("%d steps to go: %+v", steps, res)
	}
	for i, s := range append(res.Stages, LiveStage{0, res.Total}) {
		requests := [...]int{10, 10, 20}[i]
		for side, w := range map[string]LiveWork{"on": s.On, "off": s.Off} {
			if w.Requests != requests || w.Missed != 0 || w.Rejected != 0 || w.Probed != requests*16 || w.Loaded+w.Stored != requests*16 || w.Lookups != requests*8 {
				t.Errorf("stage %d, %s: %+v", i, side, w.served)
			}
			c := w.Catalogue
			if w.Seconds <= 0 || w.Written <= 0 || w.Segments <= 0 || c.T != 10 || c.K != 4 || c.Entries < 640 || c.Absent == 0 || c.Ranges == 0 {
				t.Errorf("stage %d, %s: %+v", i, side, w)
			}
		}
		if s.On.served != s.Off.served {
			t.Errorf("stage %d: on %+v, off %+v", i, s.On.served, s.Off.served)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	t.Setenv("PATH", "")
	if _, err := Stages(t.Context(), o); !errors.Is(err, kit.ErrNoRank) {
		t.Errorf("without cascaded: %v", err)
	}
}

func TestStagesRefusesOptions(t *testing.T) {
	for _, o := range []StagesOptions{{Requests: -1}, {Blocks: -1}, {Warm: -1}, {Conns: -1}, {Rounds: -1}, {Lookups: -1}, {Size: 8}, {HitRates: []float64{2}}} {
		if _, err := Stages(context.Background(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestChainsShareHeads: a block has one name and one value, whatever chain it is
// asked for by, and no two blocks have the same.
func TestChainsShareHeads(t *testing.T) {
	const blocks, warm, requests = 8, 5, 20
	c := &chains{size: 64, perChain: blocks}
	for i := range warm {
		c.heads = append(c.heads, Request{Sequence: int64(i), Blocks: blocks})
	}
	for i, stage := range growing([]float64{0.5, 0.8}, requests, blocks, warm) {
		for _, r := range stage {
			if r.Prefix >= int64(warm+i*requests) {
				t.Errorf("stage %d shares a head with chain %d of the same stage", i, r.Prefix)
			}
			c.heads = append(c.heads, r)
		}
	}
	keys, values, shared := map[string]string{}, map[string]string{}, 0
	for chain, r := range c.heads {
		if r.Sequence != int64(chain) {
			t.Fatalf("chain %d is number %d", r.Sequence, chain)
		}
		for i := range blocks {
			var v [64]byte
			c.value(v[:], int64(chain), i)
			key, origin := c.key(int64(chain), i), fmt.Sprint(c.stored(int64(chain), i), i)
			if i < r.Cached {
				shared++
				if key != c.key(r.Prefix, i) {
					t.Errorf("block %d of chain %d is not that of chain %d", i, chain, r.Prefix)
				}
			}
			for _, seen := range []struct {
				m    map[string]string
				what string
			}{{keys, key}, {values, string(v[:])}} {
				if was, ok := seen.m[seen.what]; ok && was != origin {
					t.Errorf("%q is of %s and %s", seen.what, was, origin)
				}
				seen.m[seen.what] = origin
			}
		}
	}
	if shared == 0 || len(keys) != len(values) || len(keys) != len(c.heads)*blocks-shared {
		t.Errorf("%d blocks shared, %d keys, %d values", shared, len(keys), len(values))
	}
}

// answering returns a client of a server that gives these answers, whatever it is asked.
func answering(t *testing.T, answers ...string) *resp.Client {
	t.Helper()
	here, there := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	go func() { _, _ = io.WriteString(there, strings.Join(answers, "")) }()
	c := resp.NewClient(here, 0)
	t.Cleanup(func() { _, _ = c.Close(), there.Close() })
	return c
}

func bulk[S string | []byte](s S) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// TestWrongAnswersEndStages: bytes, or names, that nobody stored are noticed.
func TestWrongAnswersEndStages(t *testing.T) {
	c := &chains{size: 16, perChain: 4, perLookup: 2, heads: []Request{{Blocks: 4}, {Sequence: 1, Blocks: 4, Cached: 2}}}
	var first, second [16]byte
	c.value(first[:], 1, 0)
	c.value(second[:], 1, 1)
	probe := func(hits int) string { return fmt.Sprintf("%%1\r\n$4\r\nhits\r\n:%d\r\n", hits) }
	for name, test := range map[string]struct {
		answers []string
		wrong   bool
		missed  int
	}{
		"all is right":      {[]string{probe(2), ":1\r\n", ":0\r\n", "*2\r\n" + bulk(first[:]) + bulk(second[:])}, false, 0},
		"some is lost":      {[]string{probe(1), ":0\r\n", ":0\r\n", "*1\r\n$-1\r\n"}, false, 3},
		"too many":          {[]string{probe(3)}, true, 0},
		"an absent name":    {[]string{probe(2), ":1\r\n", ":1\r\n"}, true, 0},
		"other bytes":       {[]string{probe(2), ":1\r\n", ":0\r\n", "*2\r\n" + bulk(first[:]) + bulk(first[:])}, true, 0},
		"too few answers":   {[]string{probe(2), ":1\r\n", ":0\r\n", "*1\r\n" + bulk(first[:])}, true, 0},
		"other bytes alone": {[]string{probe(1), ":1\r\n", ":0\r\n", "*1\r\n" + bulk(second[:])}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			answers := append(test.answers, bulk("id"), bulk("id"))
			conn := &chainConn{chains: c, client: answering(t, answers...), values: make([]byte, 64)}
			if err := conn.serve(c.heads[1]); errors.Is(err, kit.ErrWrong) != test.wrong || !test.wrong && err != nil {
				t.Errorf("got %v", err)
			}
			if !test.wrong && (conn.done.Missed != test.missed || conn.done.Stored != 2) {
				t.Errorf("%+v, %d missed", conn.done, test.missed)
			}
		})
	}
}

// TestBrokenCatalogueEndsStages: a catalogue that is missing, broken, or was begun anew
// is an error, and so is what a rank reports of wrong or lost blocks.
func TestBrokenCatalogueEndsStages(t *testing.T) {
	good := func(puts uint64) rankStats { return rankStats{Catalogue: &tiers.CatalogueState{Puts: puts}} }
	broken, corrupt, lost := good(9), good(9), good(9)
	broken.Catalogue.Broken, corrupt.Corrupt, lost.Lost = "no space", 1, 1
	for name, test := range map[string]struct {
		s    rankStats
		want error
	}{
		"works": {good(9), nil}, "none": {rankStats{}, ErrCatalogue}, "broken": {broken, ErrCatalogue}, "begun anew": {good(2), ErrCatalogue},
		"corrupt": {corrupt, kit.ErrWrong}, "lost": {lost, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(test.s)
			if err != nil {
				t.Fatal(err)
			}
			process, err := kit.Start("sleep", io.Discard, exec.Command("sleep", "60"))
			if err != nil {
				t.Fatal(err)
			}
			defer process.Stop()
			r := &liveRank{Process: process, control: answering(t, bulk(text)), last: good(5)}
			if _, err := r.stats(); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if want := max(5, test.s.puts()); test.want == nil && r.last.puts() != want || test.want != nil && r.last.puts() != 5 {
				t.Errorf("%d puts are remembered", r.last.puts())
			}
		})
	}
}

func (s *rankStats) puts() uint64 {
	if s.Catalogue == nil {
		return 0
	}
	return s.Catalogue.Puts
}

// TestStagesCompare: ratios are those within a round; sums are of all stages, and the
// shape of the index is that at the end.
func TestStagesCompare(t *testing.T) {
	work := func(seconds, written float64, puts uint64, k int) LiveWork {
		return LiveWork{Seconds: seconds, Written: written, served: served{Requests: 1}, Catalogue: CatalogueWork{Puts: puts, Absent: 1, K: k}}
	}
	res := &StagesResult{}
	res.compare([]float64{0.2, 0.7},
		[][]LiveWork{{work(1, 10, 3, 4), work(3, 10, 5, 1)}, {work(2, 10, 3, 4), work(2, 50, 5, 1)}},
		[][]LiveWork{{work(2, 10, 3, 4), work(2, 10, 5, 4)}, {work(4, 20, 3, 4), work(4, 40, 5, 4)}})
	if got := res.Stages[0].Ratios; got.Seconds != 0.5 || got.Written != 0.75 {
		t.Errorf("first stage: %+v", got)
	}
	if got := res.ByRound; len(got) != 2 || got[0].Seconds != 1 || got[1].Seconds != 0.5 || got[1].Written != 1 {
		t.Errorf("by round: %+v", got)
	}
	if got := res.Total; got.Ratios.Seconds != 0.75 || got.On.Seconds != 4 || got.On.Requests != 2 || got.On.Catalogue.Puts != 8 || got.On.Catalogue.K != 1 || got.On.Catalogue.Mix.Put != 0.8 {
		t.Errorf("total: %+v", got)
	}
	text, err := json.Marshal(res)
	for _, field := range []string{`"stages":[{"expected_hit":0.2,"on":{"seconds":1.5,`, `"ratios_by_round":[{"seconds":1,`, `"requests":1,`, `"mix":{`} {
		if err != nil || !strings.Contains(string(text), field) {
			t.Errorf("no %s in %s, %v", field, text, err)
		}
	}
}

// TestUsedCountsMergedSegments: bytes of segments that a merge has removed were written too.
func TestUsedCountsMergedSegments(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "s"), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	process, err := kit.Start("sleep", io.Discard, exec.Command("sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	defer process.Stop()
	s := rankStats{Catalogue: &tiers.CatalogueState{}, Tiers: []tiers.Stats{{}, {Merged: &tiers.Merged{Removed: 40}}}}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	r := &liveRank{Process: process, segments: dir, control: answering(t, bulk(text))}
	if u, err := r.used(); err != nil || u.segments != 140 {
		t.Errorf("%+v, %v", u, err)
	}
}
