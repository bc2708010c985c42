package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/fabricbench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
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
	return &cobra.Command{Use: fabricbench.RankVerb + " FOLDER BYTES [ROLE [LISTEN [OTHER-LISTEN OTHER-NETNS]]]", Hidden: true, Args: cli.Arity(2, 6), RunE: func(cmd *cobra.Command, args []string) error {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return cli.Usagef("%s: %v", fabricbench.RankVerb, err)
		}
		o := fabricbench.RankOptions{Folder: args[0], Bytes: n, In: os.Stdin, Out: a.out}
		for i, to := range []*string{&o.Listen, &o.OtherListen, &o.OtherNetns} {
			if 3+i < len(args) {
				*to = args[3+i]
			}
		}
		if len(args) >= 3 {
			return fabricbench.RankTCP(cmd.Context(), args[2], o)
		}
		return fabricbench.Rank(cmd.Context(), o)
	}}
}

func (a *app) networkCommand() *cobra.Command {
	o := fabricbench.NetworkOptions{Callers: 8, Rounds: 9}
	read := units.Bytes(4 << 20)
	c := verb("network", "Compare reads between two ranks in two network namespaces with iperf3, alternating",
		"Compare reads of one rank from another over TCP between two network namespaces, joined by veth, with iperf3 over as many streams,\n"+
			"alternating. It makes the namespaces itself, for which it needs root, ip and iperf3.",
		func(cmd *cobra.Command) error {
			if o.Rounds <= 0 || o.Callers <= 0 || read <= 0 {
				return cli.Usagef("bench network: --rounds, --callers and --size must be above 0")
			}
			o.Bytes, o.Progress, o.Log = int(read), a.rounds("bench network"), a.err
			res, err := fabricbench.RunNetwork(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.print(res, [][]string{{"SIZE", "CALLERS", "STREAMS", "READ GB/s", "IPERF3 GB/s", "RATIO", "READ CPU s/GB", "IPERF3 CPU s/GB"},
				row(size(res.Bytes), strconv.Itoa(res.Callers), strconv.Itoa(res.Streams), res.ReadGBps, res.Iperf3GBps, res.Ratio, res.ReadCPU, res.Iperf3CPU)})
		})
	c.Flags().IntVar(&o.Callers, "callers", o.Callers, "reads at the same time")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	c.Flags().Var(&read, "size", "bytes of a read")
	return c
}
