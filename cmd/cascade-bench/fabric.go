package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/fabricbench"
	"cascadekv/internal/cli"
)

func (a *app) fabricCommand() *cobra.Command {
	o := fabricbench.Options{MPI: "openmpi", Rounds: 9}
	c := verb("fabric", "Compare reads between two ranks with the same transfers in C, alternating",
		"Compare reads between two ranks with the same transfers in C, alternating.\n"+
			"It starts mpirun and builds both programs itself, for which it needs Go, a C compiler and the source tree.",
		func(cmd *cobra.Command) error {
			if o.Rounds <= 0 {
				return cli.Usagef("bench fabric: --rounds must be above 0")
			}
			o.Progress, o.Log = a.rounds("bench fabric"), a.err
			res, err := fabricbench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			rows := [][]string{{"SIZE", "MODE", "READ GB/s", "C GB/s", "RATIO", fmt.Sprintf("%d CALLERS GB/s", res.Callers), "RATIO"}}
			for _, s := range res.Sizes {
				rows = append(rows, row(size(s.Bytes), s.Mode, s.ReadGBps, s.CGBps, s.Ratio, s.ConcurrentGBps, s.ConcurrentRatio))
			}
			return a.print(res, append(rows, []string{fmt.Sprintf("idle rank: %.4g cores", res.IdleCore)}))
		})
	c.Flags().StringVar(&o.MPI, "mpi", o.MPI, "openmpi, mpich, or none for TCP")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	return c
}

// fabricRankCommand is one of the ranks that fabric starts.
func (a *app) fabricRankCommand() *cobra.Command {
	return &cobra.Command{Use: fabricbench.RankVerb + " FOLDER BYTES [ROLE]", Hidden: true, Args: cli.Arity(2, 3), RunE: func(cmd *cobra.Command, args []string) error {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return cli.Usagef("%s: %v", fabricbench.RankVerb, err)
		}
		o := fabricbench.RankOptions{Folder: args[0], Bytes: n, In: os.Stdin, Out: a.out}
		if len(args) == 3 {
			return fabricbench.RankTCP(cmd.Context(), args[2], o)
		}
		return fabricbench.Rank(cmd.Context(), o)
	}}
}
