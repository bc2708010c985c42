package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"cascadekv/cascade"
	"cascadekv/internal/cli"
	"cascadekv/internal/losslog"
)

// TestWhy: what people read of an answer, and what programs do.
func TestWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		answer, want string
		status       int
	}{
		"here": {
			`{"state":"readable","id":"ba78","bytes":1048576,"names":2,"dirty":false,"leased":true,"readers":1,"leads":true,"levels":[
			{"name":"shm","policy":"prefix","here":true,"class":"2-3 uses; turn 2","idle_s":90,"worth":0.00123,"hazard":0.25,"holds":2,"before_blocks":1600,"before_bytes":3221225472,"estimated":true},
			{"name":"lustre","here":true,"segment":{"path":"rank000-1/agg_rank000_000001.bin","offset":4096},"idle_s":-1}],
			"copies":[{"rank":3,"memory":true,"segment":{"path":"p","offset":0}},{"memory":false,"segment":{"path":"q","offset":8}}],
			"miss":{"reason":"evicted","level":"shm","ago_ms":61000,"kept_ms":0}}`,
			`key        "k" in "ns": readable on this rank
block      ba78, 1.00 MiB, 2 names, leased, blocks after it are stored, 1 reader
shm        here
           prefix: 2-3 uses; turn 2; last asked for or stored 1m30s ago; worth 0.00123 a second, hazard 0.25
           prefix: leaves after about 3.00 GiB of 1600 blocks, once 2 holds on it ended
lustre     written to rank000-1/agg_rank000_000001.bin at byte 4096
rank 3     memory and p at byte 0
catalogue  q at byte 8
last loss  evicted for want of room, in shm, 1m1s ago
`, cli.OK,
		},
		"next": {
			`{"state":"readable","id":"ba78","bytes":1,"names":1,"dirty":true,"generated":true,"levels":[{"name":"shm","policy":"lru","here":true,"idle_s":-1}],"miss":{"kept_ms":0}}`,
			`key        "k" in "ns": readable on this rank
block      ba78, 1 B, 1 name, dirty, of generated tokens
shm        here
           lru: leaves next
last loss  none
`, cli.OK,
		},
		"spilled": {
			`{"state":"elsewhere","id":"ba78","bytes":1,"levels":[{"name":"lustre","spilled":true,"segment":{"path":"p","offset":1}}],"miss":{"kept_ms":5000}}`,
			`key        "k" in "ns": not in this rank's memory, but readable
block      ba78, 1 B
lustre     spilled to p at byte 1
last loss  none in the last 5s
`, cli.OK,
		},
		"dead": {
			`{"state":"absent","levels":[{"name":"shm","policy":"prefix","remembered":true,"class":"1 use","idle_s":2}],"miss":{"reason":"rank_dead","rank":7}}`,
			`key        "k" in "ns": nowhere, as far as this rank knows
shm        not here; its policy remembers it
           prefix: 1 use; last asked for or stored 2s ago
last loss  only a rank that is dead had it: rank 7
`, exitMiss,
		},
		"unknown": {
			`{"state":"absent","levels":[{"name":"shm","policy":"prefix","idle_s":-1}],"miss":{"reason":"unknown","kept_ms":3600000}}`,
			`key        "k" in "ns": nowhere, as far as this rank knows
shm        not here
last loss  not known: none in the last 1h0m0s, and older ones are forgotten
`, exitMiss,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeRank{why: tc.answer}
			socket := startRank(t, f)
			got := cascadeCommand("", nil, "why", "k", "--namespace", "ns", "--socket", socket)
			if got.out != tc.want || got.status != tc.status {
				t.Errorf("status %d, %s\n%s, want %d\n%s", got.status, got.err, got.out, tc.status, tc.want)
			}
			if !slices.Equal(f.last(), []string{"CASCADE.WHY", "ns", "k"}) {
				t.Errorf("the rank was asked %q", f.last())
			}
			var report, want cascade.KeyReport
			got = cascadeCommand("", nil, "why", "k", "--json", "--socket", socket)
			if err := json.Unmarshal([]byte(tc.answer), &want); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(got.out), &report); err != nil || report.Miss.Reason != want.Miss.Reason || len(report.Levels) != len(want.Levels) || got.status != tc.status {
				t.Errorf("--json: %v in %+v", err, got)
			}
		})
	}
	if got := cascadeCommand("", nil, "why"); got.status != cli.Usage {
		t.Errorf("without a key: %+v", got)
	}
}

// TestWhyWords: each reason has words.
func TestWhyWords(t *testing.T) {
	for r := losslog.Evicted; r <= losslog.RankDead; r++ {
		if text := whyMiss(cascade.MissReport{Reason: r.String()}); text == r.String() || strings.Contains(text, "unknown") {
			t.Errorf("%s: %q", r, text)
		}
	}
}
