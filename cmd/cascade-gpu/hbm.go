package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/cmd/cascade-gpu/hbmbench"
	"cascadekv/gpu/cuda"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

// emulatedNote is in every result of the stand-in for the driver.
const emulatedNote = "emulated: times mean nothing"

// emulator is a function that the stand-in for the driver exports and no driver does.
const emulator = "fakecuda_rules"

// hbmResult is a measurement, and of what.
type hbmResult struct {
	Emulated bool   `json:"emulated"`
	Note     string `json:"note,omitempty"` // emulatedNote
	GPU      string `json:"gpu"`
	CUDA     string `json:"cuda"`
	*hbmbench.Result
}

func (a *app) hbmCommand() *cobra.Command {
	var o hbmbench.Options
	var library string
	var number int
	block, turn := 2*units.MiB, 512*units.MiB
	o.Rounds, o.Entries = 5, 1<<18
	c := &cobra.Command{Use: "hbm", Short: "Compare copies of blocks to and from a GPU with a plain copy of pinned memory, alternating",
		Long: `Compare copies of blocks to and from a GPU, one by one and by the memory tier over
them, with a plain copy of the same bytes of pinned memory. All bytes are compared. Also
measure what names blocks on the CPU: SHA-256, and a table of ids (Tutti Fig. 3).
cascade bench hbm is the same. docs/gpu.md says what the figures mean.

Without a driver there is nothing to measure, and the exit status is 1. The stand-in for
the driver, bin/gpu-kit/libfakecuda.so of make gpu-kit, runs it where --library names it:
that proves the program, and its times mean nothing, which the result says.`,
		Args: cli.Arity(0, 0), RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Rounds < 1 || o.Entries < 1 || block < 1 || turn < 1 {
				return cli.Usagef("bench hbm: --rounds, --entries, --block and --size must be above 0")
			}
			bar := cli.Progress(a.err, -1, "bench hbm", false)
			o.BlockBytes, o.Bytes = int64(block), int64(turn)
			o.Progress = func(done, total int) {
				bar.ChangeMax(total)
				_ = bar.Set(done) // drawing is best effort
			}
			res, err := runHBM(cmd.Context(), library, number, o)
			if errors.Is(err, kit.ErrBadOption) {
				return cli.AsUsage(fmt.Errorf("bench hbm: %w", err))
			}
			if err != nil {
				return fmt.Errorf("bench hbm: %w", err)
			}
			return cli.Show(a.out, a.json, res, func() error { return a.printHBM(res) })
		}}
	libraryFlag(c, &library)
	f := c.Flags()
	f.IntVar(&number, "gpu", 0, "number of the GPU, as probe has it")
	f.Var(&block, "block", "bytes of a block, whole pages")
	f.Var(&turn, "size", "bytes of one measurement, whole blocks; of the GPU's memory it takes twice as much")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	f.IntVar(&o.Entries, "entries", o.Entries, "ids in the table")
	return c
}

// runHBM measures on a GPU of the driver. Without a driver the error says what is missing.
func runHBM(ctx context.Context, library string, number int, o hbmbench.Options) (_ *hbmResult, err error) {
	d, err := cuda.Open(library)
	switch {
	case errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.NoDevice):
		return nil, fmt.Errorf("nothing to measure here: %w; without a GPU, --library bin/gpu-kit/libfakecuda.so (make gpu-kit) runs it on a stand-in, whose times mean nothing", err)
	case err != nil:
		return nil, err
	}
	res := &hbmResult{Emulated: d.Has(emulator)}
	if res.Emulated {
		res.Note = emulatedNote
		if library == "" {
			return nil, errors.New("the loader's libcuda is the stand-in for the driver: name it with --library to measure with it, or correct LD_LIBRARY_PATH")
		}
	}
	version, err := d.Version()
	if err != nil {
		return nil, err
	}
	res.CUDA = cudaVersion(version)
	dev, err := d.Device(number)
	if err != nil {
		return nil, err
	}
	if res.GPU, err = dev.Name(); err != nil {
		return nil, err
	}
	if o.Context, err = dev.Retain(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.Context.Release()) }()
	res.Result, err = hbmbench.Run(ctx, o)
	return res, err
}

// cudaVersion is the driver's number as people write it.
func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

func (a *app) printHBM(r *hbmResult) error {
	if r.Note != "" {
		if _, err := fmt.Fprintln(a.out, r.Note); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.out, "%s, CUDA %s; %s in blocks of %s\n", r.GPU, r.CUDA, units.Bytes(r.TurnBytes).Human(), units.Bytes(r.BlockBytes).Human())
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
	rows := [][]string{{"MB/s", "TO GPU", "LEAST", "MOST", "OVER PLAIN", "FROM GPU", "LEAST", "MOST", "OVER PLAIN"}}
	for _, w := range []struct {
		name string
		hbmbench.Way
	}{{"plain copy, pinned", r.Plain}, {"a copy for each block", r.Batch}, {"tier, pinned memory", r.Direct}, {"tier, other memory", r.Bounced}} {
		rows = append(rows, []string{w.name, number(w.ToGPU.MBps), number(w.ToGPU.MinMBps), number(w.ToGPU.MaxMBps), number(w.RatioToGPU),
			number(w.FromGPU.MBps), number(w.FromGPU.MinMBps), number(w.FromGPU.MaxMBps), number(w.RatioFromGPU)})
	}
	if err := cli.PrintTable(a.out, rows); err != nil {
		return err
	}
	h := r.Hash
	_, err := fmt.Fprintf(a.out, "SHA-256: %s MB/s by one thread, %s by %d\ntable of %d ids: %s ns to insert one, %s to look one up\nerrors: %d\n",
		number(h.One.MBps), number(h.All.MBps), h.Threads, h.Entries, number(h.InsertNs), number(h.LookupNs), r.Errors)
	return err
}
