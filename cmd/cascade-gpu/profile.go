package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/giobench"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/cmd/cascade-bench/slackbench"
	"cascadekv/cmd/cascade-gpu/profiling"
	"cascadekv/gpu/cuda"
	"cascadekv/internal/cli"
)

// deviceCommand is the device that profile starts.
func deviceCommand() *cobra.Command {
	return &cobra.Command{Use: giobench.DeviceVerb, Hidden: true, Args: cli.Arity(0, 0), RunE: func(*cobra.Command, []string) error { return giobench.Device() }}
}

func (a *app) profileCommand() *cobra.Command {
	o := profiling.Options{Figures: slackbench.Llama8B(), Disk: giobench.LaunchOptions{Most: 32, Rounds: 9}}
	m := &o.Figures
	var library string
	var number int
	tflops, memory := m.Flops/1e12, m.Memory/1e9
	overhead := time.Duration(m.Overhead * 1e9)
	c := &cobra.Command{Use: "profile", Short: "Make the profile of a deployment, by which transfers are launched into slack",
		Long: `Make the profile of a deployment, by which the slack scheduler launches transfers:
how long launches of reads and writes take on the disk of --dir, by their number of
IOCBs, which is measured, and how long layers compute, which is computed from the figures
of the GPU and of the model that flags give (default: Llama3-8B on an H100). The output
says which is which. Where a driver is found, the GPU's name, its SMs and those that launches occupy are its own.

The profile is written below --folder by a name that follows from --model, the GPU and
--configuration. One that is there is used again, and nothing is measured. What is written
below --dir is removed again. docs/gpu-store.md has the format.`,
		Args: cli.Arity(0, 0), RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Model == "" || o.Folder == "" {
				return cli.Usagef("gpu profile: name the model with --model and the folder of profiles with --folder")
			}
			if err := describeGPU(library, number, cmd.Flags().Changed("sms"), &o); err != nil {
				return err
			}
			m.Flops, m.Memory, m.Overhead = tflops*1e12, memory*1e9, overhead.Seconds()
			bar := cli.Progress(a.err, -1, "gpu profile", false)
			o.Disk.Log = a.err
			o.Disk.Progress = func(done, total int) {
				bar.ChangeMax(total)
				_ = bar.Set(done) // drawing is best effort
			}
			r, err := profiling.Make(cmd.Context(), o)
			switch {
			case errors.Is(err, kit.ErrBadOption):
				return cli.AsUsage(fmt.Errorf("gpu profile: %w", err))
			case err != nil:
				return fmt.Errorf("gpu profile: %w", err)
			}
			return cli.Show(a.out, a.json, r, func() error { return a.printProfile(r) })
		}}
	libraryFlag(c, &library)
	f := c.Flags()
	f.StringVar(&o.Model, "model", "", "name and revision of the model, and its dtype")
	f.StringVar(&o.GPU, "gpu-name", "", "name of the GPU, where there is no driver to ask, or for another machine's")
	f.StringVar(&o.Configuration, "configuration", "", "what else changes times: engine and version, parallelism, disks")
	f.StringVar(&o.Folder, "folder", "", "where profiles are")
	f.BoolVar(&o.Force, "force", false, "measure although there is a profile, and replace it")
	f.StringVar(&o.Disk.Dir, "dir", "", "directory on the disk to measure")
	f.StringVar(&o.Disk.Engine, "engine", "", "io_uring or user; the first that works by default")
	f.IntVar(&o.Disk.Rounds, "rounds", o.Disk.Rounds, "measurements of each launch, of which the median counts")
	f.IntVar(&o.Disk.Most, "iocbs", o.Disk.Most, "IOCBs of the largest launch, a power of two from 2 to 64")
	f.IntVar(&number, "gpu", 0, "number of the GPU, as probe has it")
	f.IntVar(&m.Transfers, "transfers", m.Transfers, "transfers of an IOCB")
	f.IntVar(&m.Layers, "layers", m.Layers, "layers of the model")
	f.Float64Var(&m.Params, "layer-params", m.Params, "parameters of a layer")
	f.IntVar(&m.Hidden, "hidden", m.Hidden, "heads times elements of a head")
	f.Int64Var(&m.KVBytes, "kv-bytes", m.KVBytes, "bytes of a token's keys and values in a layer, on one GPU")
	f.IntVar(&m.BlockTokens, "block-tokens", m.BlockTokens, "tokens of a block of the engine")
	f.IntVar(&m.MaxTokens, "max-tokens", m.MaxTokens, "tokens of the longest prompt")
	f.Float64Var(&tflops, "tflops", tflops, "that compute reaches")
	f.Float64Var(&memory, "bandwidth", memory, "GB/s of device memory")
	cli.DurationVar(f, &overhead, "overhead", overhead, "of a layer besides its arithmetic")
	f.IntVar(&m.SMs, "sms", m.SMs, "streaming multiprocessors of the GPU")
	f.IntVar(&m.FreeSMs, "free-sms", m.FreeSMs, "of these that a layer of a prefill leaves free")
	f.IntVar(&m.DecodeSMs, "decode-sms", m.DecodeSMs, "that a decode step leaves free")
	return c
}

// describeGPU has the driver name the GPU, count its SMs, where the flags do not, and say what bounds its ring.
func describeGPU(library string, number int, haveSMs bool, o *profiling.Options) error {
	if o.GPU != "" {
		return nil
	}
	d, err := cuda.Open(library)
	if errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.NoDevice) {
		return cli.Usagef("gpu profile: no GPU here says its name, give it with --gpu-name: %w", err)
	}
	if err != nil {
		return fmt.Errorf("gpu profile: %w", err)
	}
	dev, err := d.Device(number)
	if err != nil {
		return fmt.Errorf("gpu profile: %w", err)
	}
	name, err1 := dev.Name()
	sms, err2 := dev.Attribute(cuda.Multiprocessors)
	ring, err3 := deviceFacts(dev)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("gpu profile: %w", err)
	}
	o.Figures.Ring = ring
	if o.GPU = name; !haveSMs {
		m := &o.Figures
		m.SMs, m.FreeSMs, m.DecodeSMs = sms, min(m.FreeSMs, sms), min(m.DecodeSMs, sms) // a small GPU has no more
	}
	return nil
}

func (a *app) printProfile(r *profiling.Report) error {
	if r.Reused {
		_, err := fmt.Fprintf(a.out, "%s\n%v: there already, nothing was measured; --force makes it anew\n", r.Path, r.Key)
		return err
	}
	fmt.Fprintf(a.out, "%s\n%v\ncompute windows: %s\nreads and writes: measured by %s, triggered by %s\n", r.Path, r.Key, r.Windows, r.Disk.Engine, r.Disk.Trigger)
	if r.Disk.Fallback != "" {
		fmt.Fprintf(a.out, "no io_uring: %s\n", r.Disk.Fallback)
	}
	rows := [][]string{{"IOCBs", "READ ms", "LEAST", "MOST", "MB/s", "WRITE ms", "LEAST", "MOST", "MB/s", "SMs"}}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.3g", float64(d)/1e6) }
	for i, k := range r.Profile.Read {
		row := []string{fmt.Sprint(k.IOCBs)}
		for _, l := range []giobench.Launch{r.Disk.Read[i], r.Disk.Write[i]} {
			rate := float64(int64(l.IOCBs)*r.Profile.IOCBBytes) / kit.Mega / l.Time.Seconds()
			row = append(row, ms(l.Time), ms(l.Least), ms(l.Most), fmt.Sprintf("%.4g", rate))
		}
		rows = append(rows, append(row, fmt.Sprint(k.SMs)))
	}
	return cli.PrintTable(a.out, rows)
}
