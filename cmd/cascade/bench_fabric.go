package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
	"cascadekv/internal/units"
)

func (a *app) benchFabric() *cobra.Command {
	o := bench.FabricOptions{MPI: "openmpi", Rounds: 9}
	c := &cobra.Command{Use: "fabric", Short: "Compare reads between two ranks with the same transfers in C, alternating", Args: arity(0, 0),
		Long: "Compare reads between two ranks with the same transfers in C, alternating.\n" +
			"It starts mpirun and builds both programs itself, for which it needs Go, a C compiler and the source tree.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Rounds <= 0 {
				return usagef("bench fabric: --rounds must be above 0")
			}
			o.Progress, o.Log = a.rounds("bench fabric"), cmd.ErrOrStderr()
			res, err := bench.Fabric(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printFabric(res)
		}}
	c.Flags().StringVar(&o.MPI, "mpi", o.MPI, "openmpi, mpich, or none for TCP")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	return c
}

func (a *app) printFabric(res *bench.FabricResult) error {
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"SIZE", "MODE", "READ GB/s", "C GB/s", "RATIO", "32 CALLERS GB/s", "RATIO"}}
	for _, s := range res.Sizes {
		rows = append(rows, []string{units.Bytes(s.Bytes).String(), s.Mode, figure(s.ReadGBps), figure(s.CGBps), figure(s.Ratio),
			figure(s.ConcurrentGBps), figure(s.ConcurrentRatio)})
	}
	rows = append(rows, []string{"idle rank: " + figure(res.IdleCore) + " cores"})
	return a.table(rows)
}

// benchFabricRank is one of the ranks that bench fabric starts.
func (a *app) benchFabricRank() *cobra.Command {
	return &cobra.Command{Use: bench.FabricRankVerb + " FOLDER BYTES [ROLE]", Hidden: true, Args: arity(2, 3), RunE: func(cmd *cobra.Command, args []string) error {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return usagef("%s: %v", bench.FabricRankVerb, err)
		}
		o := bench.FabricRankOptions{Folder: args[0], Bytes: n, In: os.Stdin, Out: cmd.OutOrStdout()}
		if len(args) == 3 {
			return bench.FabricRankTCP(cmd.Context(), args[2], o)
		}
		return bench.FabricRank(cmd.Context(), o)
	}}
}
