package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/giobench"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) gioCommand() *cobra.Command {
	o := giobench.Options{Rounds: 9, Depth: 1024}
	turn := 512 * units.MiB
	c := verb("gio", "Compare I/O that a device triggers by memory alone: with fio and pread, in both directions, by size of commands",
		"Compare reads of 128 KiB that a device triggers by memory alone with fio (io_uring, the same depth) and with a pool of threads of pread.\n"+
			"Then compare reads and writes in flight together with reads first and writes after them, and commands of 128 KiB with such of 4 KiB.\n"+
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
	ratios = append(ratios, []string{fmt.Sprintf("device: %s; it spins, %.3g s/GB", res.Trigger, res.Gio.DeviceCPU)})
	return a.print(res, rows, ratios, mixedRows(&res.Mixed), commandRows(&res.Commands))
}

// mixedRows is the table in the form of Tutti Fig. 6.
func mixedRows(m *giobench.Mixed) [][]string {
	line := func(name string, reads, writes, both kit.Figure) []string {
		return row(name, reads.MBps, writes.MBps, both.MBps, both.MinMBps, both.MaxMBps)
	}
	return [][]string{{"READS AND WRITES", "READS MB/s", "WRITES MB/s", "BOTH MB/s", "LEAST", "MOST"},
		line("reads, then writes", m.Reads.Apart, m.Writes.Apart, m.Apart),
		line("together", m.Reads.Together, m.Writes.Together, m.Together), row("apart / together", "", "", m.Ratio)}
}

// commandRows is the table in the form of Tutti Fig. 10.
func commandRows(c *giobench.Commands) [][]string {
	rows := [][]string{{"COMMANDS", "128 KiB MB/s", "4 KiB MB/s", "RATIO", "SYSTEM CPU s/GB", "4 KiB"}}
	for _, d := range []struct {
		name string
		giobench.Sizes
	}{{"read", c.Read}, {"write", c.Write}} {
		rows = append(rows, row(d.name, d.Large.MBps, d.Small.MBps, d.Ratio, d.Large.SystemCPU, d.Small.SystemCPU))
	}
	return rows
}
