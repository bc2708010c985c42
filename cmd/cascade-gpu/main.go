package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

// app is what the verbs share. It is used by one goroutine.
type app struct {
	out, err io.Writer
	json     bool
}

func main() {
	a := &app{out: os.Stdout, err: os.Stderr}
	os.Exit(a.run(cli.Interruptible(), os.Args[1:]))
}

// run executes one command line and returns its exit status.
func (a *app) run(ctx context.Context, args []string) int {
	return cli.Run(ctx, a.root(), args, a.out, a.err)
}

func (a *app) root() *cobra.Command {
	c := cli.Part("cascade-gpu", "gpu", "Look at the GPUs of this machine, and measure them", &a.json)
	c.AddCommand(a.probeCommand(), a.hbmCommand(), a.profileCommand(), deviceCommand())
	return c
}

// libraryFlag is the flag of all verbs that names the driver.
func libraryFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "library", "", "path of libcuda, where the loader does not find the one wanted")
}

func (a *app) probeCommand() *cobra.Command {
	p := prober{sys: "/sys", manage: managed}
	c := &cobra.Command{Use: "probe", Short: "Report the GPUs of this machine, and which triggers work on each",
		Long: `Report the driver, the GPUs that this process sees, and for each of them which
triggers work, from the best: ptx, memop, cpu. A trigger that can not be used comes
with the reason. Without a driver or a GPU that is the report; the exit status is 0.
The report also has what bounds a ring of each GPU, whether some of its SMs can be set
apart (green contexts), and whether cuFile takes a file in --dir, which is made and removed.
Of all GPUs of the machine NVIDIA's management library reports memory, MIG, NUMA
nodes, health and what lies between them, where the program was built with cgo.

To try a trigger the program makes a context on the GPU, some 0.5 GiB of its memory
for a second, and gives it back.`,
		Args: cli.Arity(0, 0), RunE: func(*cobra.Command, []string) error {
			r := p.probe()
			return cli.Show(a.out, a.json, r, func() error { return a.print(r) })
		}}
	libraryFlag(c, &p.library)
	c.Flags().StringVar(&p.fileLibrary, "cufile", "", "path of libcufile, where the loader does not find the one wanted")
	c.Flags().StringVar(&p.dir, "dir", "", "directory in which cuFile is tried; that of temporary files by default")
	cli.DurationVar(c.Flags(), &p.patience, "patience", 5*time.Second, "how long an operation of a GPU, or cuFile, may take before it counts as broken")
	return c
}

// printMachine writes what the management library has.
func (a *app) printMachine(m machine) error {
	if m.Problem != "" {
		if _, err := fmt.Fprintln(a.out, m.Problem); err != nil {
			return err
		}
	}
	if len(m.GPUs) == 0 {
		return nil
	}
	rows := [][]string{{"INDEX", "UUID", "NAME", "MEMORY", "USED", "PCI", "NUMA NODE", "MIG PARTS", "HEALTH"}}
	for _, g := range m.GPUs {
		parts := "-"
		if g.MIG {
			parts = fmt.Sprint(len(g.Parts))
		}
		rows = append(rows, []string{fmt.Sprint(g.Index), g.UUID, g.Name, units.Bytes(g.Bytes).Human(), units.Bytes(g.Used).Human(), g.PCI,
			fmt.Sprint(g.NUMANode), parts, cmp.Or(g.Health.Problem(), "ok")})
	}
	return cli.PrintTable(a.out, rows)
}

// print writes a report for people.
func (a *app) print(r report) error {
	if err := a.printMachine(r.Machine); err != nil {
		return err
	}
	if r.Driver.Problem != "" {
		_, err := fmt.Fprintf(a.out, "%s\ntrigger: cpu\n", r.Driver.Problem)
		return err
	}
	if r.Driver.Emulated {
		fmt.Fprintln(a.out, "emulated: the driver is the stand-in, and what follows proves nothing of a GPU")
	}
	fmt.Fprintf(a.out, "driver for CUDA %s, %d GPUs\n", r.Driver.CUDA, len(r.GPUs))
	rows := [][]string{{"GPU", "NAME", "MEMORY", "FREE", "PCI", "NUMA NODE", "TRIGGER", "PROBLEM"}}
	for _, g := range r.GPUs {
		rows = append(rows, []string{fmt.Sprint(g.Number), g.Name, units.Bytes(g.Bytes).Human(), units.Bytes(g.Free).Human(), g.PCI,
			fmt.Sprint(g.NUMANode), g.Trigger, cli.Dash(g.Problem)})
	}
	if err := cli.PrintTable(a.out, rows); err != nil {
		return err
	}
	for _, g := range r.GPUs {
		for _, rung := range g.Ladder {
			works := "works"
			if !rung.Works {
				works = "not used: " + rung.Why
			}
			fmt.Fprintf(a.out, "GPU %d, %s: %s\n", g.Number, rung.Trigger, strings.TrimSpace(works))
		}
		a.printCapabilities(g)
	}
	return a.printDirect(r.Direct)
}

// printCapabilities writes what bounds the rings of a GPU.
func (a *app) printCapabilities(g gpu) {
	if g.Problem != "" {
		return
	}
	fmt.Fprintf(a.out, "GPU %d, ring: %d I/Os of an IOCB at most: %d SMs × %d warps × %d threads / 2\n", g.Number, g.Ring.NumIOCTX, g.Ring.UnitSMs, g.Ring.WarpsPerSM, g.Ring.ThreadsPerWarp)
	if !g.Green.Works {
		fmt.Fprintf(a.out, "GPU %d, green contexts: none: %s\n", g.Number, g.Green.Why)
		return
	}
	fmt.Fprintf(a.out, "GPU %d, green contexts: work, from %d SMs of %d on, in steps of %d\n", g.Number, g.Green.Least, g.Green.SMs, g.Green.Granularity)
}

// printDirect writes whether there is a direct path between disks and GPUs.
func (a *app) printDirect(d direct) (err error) {
	switch {
	case !d.Works:
		_, err = fmt.Fprintf(a.out, "cuFile: none: %s\n", d.Why)
	case d.Path == pathModule:
		_, err = fmt.Fprintf(a.out, "cuFile: takes files in %s, by nvidia-fs\n", d.Dir)
	default:
		_, err = fmt.Fprintf(a.out, "cuFile: takes files in %s, in its compatibility mode: nvidia-fs is not loaded\n", d.Dir)
	}
	return err
}
