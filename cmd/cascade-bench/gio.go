package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/giobench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) gioCommand() *cobra.Command {
	o := giobench.Options{Rounds: 9, Depth: 1024}
	turn := 512 * units.MiB
	c := verb("gio", "Compare reads that a device triggers by memory alone with fio and with pread, alternating",
		"Compare reads of 128 KiB that a device triggers by memory alone with fio (io_uring, the same depth) and with a pool of threads of pread.\n"+
			"The device is a process whose thread may make no system call, in the place of a GPU; all bytes are compared.\n"+
			"What it writes below --dir, twice --size, is removed again. docs/gio.md says what the figures mean.",
		func(cmd *cobra.Command) error {
			if o.Dir == "" {
				return cli.Usagef("bench gio: name a directory on the disk with --dir")
			}
			if o.Rounds <= 0 || o.Depth <= 0 || turn <= 0 {
				return cli.Usagef("bench gio: --rounds, --depth and --size must be above 0")
			}
			o.Bytes, o.Log, o.Progress = int64(turn), a.err, a.rounds("bench gio")
			res, err := giobench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printGio(res)
		})
	c.Flags().StringVar(&o.Dir, "dir", "", "directory on the disk to read")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	c.Flags().IntVar(&o.Depth, "depth", o.Depth, "reads under way at once, on every side; even")
	c.Flags().Var(&turn, "size", "bytes of one measurement, a power of two up to 512 MiB")
	c.Flags().StringVar(&o.Engine, "engine", "", "io_uring or user; the first that works by default")
	return c
}

// gioDeviceCommand is the device that gio starts.
func (a *app) gioDeviceCommand() *cobra.Command {
	return &cobra.Command{Use: giobench.DeviceVerb, Hidden: true, Args: cli.Arity(0, 0), RunE: func(*cobra.Command, []string) error { return giobench.Device() }}
}

func (a *app) printGio(res *giobench.Result) error {
	rows := [][]string{{"", "MB/s", "LEAST", "MOST", "USER CPU s/GB", "SYSTEM CPU s/GB"}}
	for _, s := range []struct {
		name string
		side giobench.Side
	}{{"gio, " + res.Engine, res.Gio}, {"fio", res.Fio}, {"pread", res.Pool}} {
		rows = append(rows, row(s.name, s.side.MBps, s.side.MinMBps, s.side.MaxMBps, s.side.UserCPU, s.side.SystemCPU))
	}
	ratios := [][]string{{"RATIO", ""}, row("gio / fio", res.RatioFio), row("gio / pread", res.RatioPool), row("user CPU, gio / pread", res.UserCPURatio), row("errors", res.Errors)}
	if res.Why != "" {
		ratios = append(ratios, []string{"no fio: " + res.Why})
	}
	if res.Fallback != "" {
		ratios = append(ratios, []string{"no io_uring: " + res.Fallback})
	}
	return a.print(res, rows, append(ratios, []string{fmt.Sprintf("device: %s; it spins, %.3g s/GB", res.Trigger, res.Gio.DeviceCPU)}))
}
