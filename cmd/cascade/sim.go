package main

import (
	"errors"
	"fmt"
	"sync"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/sim"
)

func (a *app) simCommand() *cobra.Command {
	o := sim.Options{Ranks: 256, Replicas: 2, Names: 128, Chain: 32, Seed: 1}
	c := &cobra.Command{
		Use:   "sim --ranks N",
		Short: "Simulate many ranks in this process: what a get costs, and what moves when a rank joins or dies",
		Long: "Run the real placement, directories and messages of many ranks in this process, without a network: publish\n" +
			"names, get all of them, let one rank join and one die while gets go on, and get all again. Every byte is\n" +
			"compared. It counts messages and entries; times are of this process. Exit status 1: a wrong answer, a name\n" +
			"that was not found, or directories that did not settle.\n\n" +
			"Fields of --json:\n" +
			"  lookups_per_get, hops_max       messages, and messages and reads, that a single get waits for\n" +
			"  chain_messages_max              messages that locate the keys of a chain, chain_keys of them\n" +
			"  balance_max_over_mean           partitions of a rank as owner; balance_homes: as any home\n" +
			"  balance_entries                 directory entries of a rank, max/mean; few names spread unevenly by chance\n" +
			"  join_moved_share                entries that came to new homes, of all; join_moved_share_times_n: 1 is ideal\n" +
			"  join_block_bytes                block bytes that moved without being asked for\n" +
			"  join_gets, join_misses          gets during the change, and those that found nothing\n" +
			"  join_updates                    blocks that moved in their owner's memory meanwhile\n" +
			"  leave_...                       likewise when a rank dies; leave_lost_names: blocks that only it had;\n" +
			"                                  leave_found_again: names whose entry it kept, found at another home\n" +
			"  wrong_answers, unknown_names    anything but 0 is an error\n" +
			"docs/protocol.md, \"Scale\", has figures.",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = a.phases()
			res, err := sim.Run(cmd.Context(), o)
			if errors.Is(err, sim.ErrOptions) {
				return cli.AsUsage(err)
			}
			if res == nil {
				return err
			}
			return errors.Join(err, a.printSim(res))
		},
	}
	flags := c.Flags()
	flags.IntVar(&o.Ranks, "ranks", o.Ranks, "ranks at the start, at least 3")
	flags.IntVar(&o.Replicas, "replicas", o.Replicas, "homes of a key")
	flags.IntVar(&o.Names, "names", o.Names, "names for each rank")
	flags.IntVar(&o.Chain, "chain", o.Chain, "names in a chain")
	flags.Uint64Var(&o.Seed, "seed", o.Seed, "of names, owners and who asks for what")
	return c
}

// phases returns a callback that draws a bar for each phase.
func (a *app) phases() func(phase string, done, total int) {
	var mu sync.Mutex
	bars := map[string]*progressbar.ProgressBar{}
	return func(phase string, done, total int) {
		mu.Lock()
		defer mu.Unlock()
		if bars[phase] == nil {
			bars[phase] = a.progress(int64(total), "sim: "+phase, false)
		}
		_ = bars[phase].Set(done) // drawing is best effort
	}
}

func (a *app) printSim(r *sim.Result) error {
	if a.json {
		return a.printJSON(r)
	}
	moved := func(entries int, share, timesN float64) string {
		return fmt.Sprintf("%d entries, %.4g %% of all (%.4g/N)", entries, 100*share, timesN)
	}
	during := func(gets, misses, hops, updates int) string {
		return fmt.Sprintf("%d, %d of them misses, at most %d hops; %d blocks moved", gets, misses, hops, updates)
	}
	return a.table([][]string{
		{"ranks", fmt.Sprintf("%d; %d names, %d directory entries at %d homes each", r.Ranks, r.Names, r.Entries, r.Replicas)},
		{"get", fmt.Sprintf("%.4g lookups, %.4g reads; hops: median %d, at most %d", r.LookupsPerGet, r.ReadsPerGet, r.HopsP50, r.HopsMax)},
		{"chain", fmt.Sprintf("of %d keys: %d messages, at most %d; %.4g a key", r.ChainKeys, r.ChainMessagesP50, r.ChainMessagesMax, r.ChainPerGet)},
		{"balance", fmt.Sprintf("max/mean: %.4g as owner, %.4g as any home; %.4g of entries", r.BalanceMaxOverMean, r.BalanceHomes, r.BalanceEntries)},
		{"join", moved(r.JoinMovedEntries, r.JoinMovedShare, r.JoinMovedShareTimesN) + fmt.Sprintf(", %d block bytes", r.JoinBlockBytes)},
		{"gets meanwhile", during(r.JoinGets, r.JoinMisses, r.JoinHopsMax, r.JoinUpdates)},
		{"death", moved(r.LeaveMovedEntries, r.LeaveMovedShare, r.LeaveMovedShareTimesN) + fmt.Sprintf(", %d block bytes", r.LeaveBlockBytes)},
		{"", fmt.Sprintf("%d names lost with their owner, %d found again at another home", r.LeaveLostNames, r.LeaveFoundAgain)},
		{"gets meanwhile", during(r.LeaveGets, r.LeaveMisses, r.LeaveHopsMax, r.LeaveUpdates)},
		{"answers", fmt.Sprintf("%d wrong, %d names not found, in %d gets", r.WrongAnswers, r.UnknownNames, r.Gets)},
		{"took", fmt.Sprintf("%.1f s, %.1f s of processor time", r.Seconds, r.CPUSeconds)},
	})
}
