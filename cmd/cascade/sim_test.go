package main

import (
	"encoding/json"
	"strings"
	"testing"

	"cascadekv/internal/cli"
)

func TestSim(t *testing.T) {
	got := cascadeCommand("", nil, "sim", "--ranks", "4", "--names", "16", "--seed", "5", "--json")
	var fields map[string]float64
	if err := json.Unmarshal([]byte(got.out), &fields); err != nil || got.status != cli.OK {
		t.Fatalf("%v, %+v", err, got)
	}
	for _, f := range []string{
		"ranks", "replicas", "names", "entries", "seed", "seconds", "gets", "lookups_per_get", "reads_per_get", "hops_p50", "hops_max",
		"chains", "chain_keys", "chain_messages_max", "chain_messages_per_get", "balance_max_over_mean", "balance_homes", "balance_entries",
		"join_moved_entries", "join_moved_share", "join_moved_share_times_n", "join_block_bytes", "join_misses", "join_seconds",
		"leave_lost_names", "leave_found_again", "leave_moved_share", "leave_moved_share_times_n", "leave_block_bytes", "leave_misses", "leave_seconds",
		"wrong_answers", "unknown_names",
	} {
		if _, ok := fields[f]; !ok {
			t.Errorf("no field %s in %s", f, got.out)
		}
	}
	if fields["ranks"] != 4 || fields["names"] != 64 || fields["seed"] != 5 || fields["hops_max"] != 2 {
		t.Errorf("%s", got.out)
	}
	got = cascadeCommand("", nil, "sim", "--ranks", "3", "--names", "8")
	if got.status != cli.OK || !strings.Contains(got.out, "0 wrong, 0 names not found") {
		t.Errorf("for people: %+v", got)
	}
	if got = cascadeCommand("", nil, "sim", "--ranks", "2"); got.status != cli.Usage || !strings.Contains(got.err, "3 to 2048") {
		t.Errorf("too few ranks: %+v", got)
	}
}
