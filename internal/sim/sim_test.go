package sim

import (
	"encoding/json"
	"errors"
	"testing"

	"cascadekv/internal/testing/race"
)

// check asserts what issue 4 promises of any number of ranks.
func check(t *testing.T, o Options) *Result {
	t.Helper()
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(res)
	t.Logf("%s", text)
	n := float64(res.Ranks)
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{"hops of a get <= 2", res.HopsMax <= 2 && res.LookupsMax <= 1},
		{"every get reads once", res.ReadsPerGet == 1},
		{"some gets ask a home elsewhere", res.LookupsPerGet > 1-3/n && res.LookupsPerGet <= 1},
		{"messages of a chain <= min(keys, ranks-1)", res.ChainMessagesMax <= min(res.ChainKeys, res.Ranks-1) && res.ChainMessagesMax > 0},
		{"balance <= 1.15", res.BalanceMaxOverMean >= 1 && res.BalanceMaxOverMean <= 1.15},
		{"a join moves <= 1.5/N", res.JoinMovedEntries > 0 && res.JoinMovedShareTimesN <= 1.5},
		{"a join moves no block bytes", res.JoinBlockBytes == 0},
		{"a death moves <= 1.5/N", res.LeaveMovedEntries > 0 && res.LeaveMovedShareTimesN <= 1.5},
		{"a death moves no block bytes", res.LeaveBlockBytes == 0},
		{"a rank that dies had names", res.LeaveLostNames > 0},
		{"a dead home's names are found again", res.LeaveFoundAgain > 0},
		{"gets while ranks change find what there is", res.JoinMisses == 0 && res.LeaveMisses == 0},
		{"all entries are there", res.Entries == res.Names*res.Replicas},
	} {
		if !c.ok {
			t.Errorf("%d ranks: not so: %s", res.Ranks, c.what)
		}
	}
	return res
}

func TestRanks8(t *testing.T) {
	first, again := check(t, Options{Ranks: 8, Seed: 1, Names: 32}), check(t, Options{Ranks: 8, Seed: 1, Names: 32})
	for _, r := range []*Result{first, again} {
		// How many gets run while the ranks change is up to the machine.
		r.JoinGets, r.JoinUpdates, r.JoinStatements, r.JoinHopsMax, r.JoinSeconds = 0, 0, 0, 0, 0
		r.LeaveGets, r.LeaveUpdates, r.LeaveStatements, r.LeaveHopsMax, r.LeaveSeconds = 0, 0, 0, 0, 0
		r.Seconds, r.CPUSeconds = 0, 0
	}
	if *first != *again {
		t.Errorf("the same seed gave another result:\n%+v\n%+v", *first, *again)
	}
}

func TestRanks64(t *testing.T) { check(t, Options{Ranks: 64, Seed: 2, Names: 32}) }

func TestRanks256(t *testing.T) {
	if race.On {
		t.Skip("the smaller ones do for the race detector")
	}
	check(t, Options{Ranks: 256, Seed: 3, Names: 32})
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{}, {Ranks: 2}, {Ranks: MaxRanks + 1}, {Ranks: 8, Replicas: 99}, {Ranks: 8, Names: -1}, {Ranks: 8, Chain: -1}} {
		if res, err := Run(t.Context(), o); !errors.Is(err, ErrOptions) || res != nil {
			t.Errorf("%+v: %v, %v, want ErrOptions", o, res, err)
		}
	}
}
