package traces

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/trace"
	"cascadekv/internal/trace/fromtext"
)

// fromTextFlags are those of trace from-text.
type fromTextFlags struct {
	o               fromtext.Options
	file, preset    string // one of them is empty
	output          string
	order, arrivals string
	rates           []float64
}

func (t *Tool) fromTextCommand() *cobra.Command {
	var f fromTextFlags
	c := &cobra.Command{
		Use:   "from-text FILE|--preset NAME [-o FILE]",
		Short: "Make a trace of conversations: ShareGPT or OpenOrca JSON, or the lengths of LEval or LooGLE",
		Long: "Make a trace of conversations: ShareGPT's or OpenOrca's JSON, or a preset with the lengths of a benchmark as the\n" +
			"Tutti paper has them. Each answered question is a request; its prompt is all of the conversation before. The same\n" +
			"text, and so the same start of a prompt, has the same hash ids. Tokens are estimated: --chars-per-token characters\n" +
			"are one. Several --rps make a file each, whose requests differ in time only.",
		Args: cli.Arity(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				f.file = args[0]
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			return t.fromText(&f)
		},
	}
	flags := c.Flags()
	flags.StringVarP(&f.output, "output", "o", "", "file to write, compressed if it ends in .gz (default: standard output); with several rates -rpsN is put before the ending")
	flags.StringVar(&f.preset, "preset", "", "make documents and questions with the lengths of a benchmark: "+strings.Join(fromtext.Presets(), ", "))
	flags.Float64SliceVar(&f.rates, "rps", []float64{1}, "mean requests a second; several: a file for each")
	flags.StringVar(&f.arrivals, "arrivals", "poisson", "when requests come: poisson, or even, at the same distance")
	flags.StringVar(&f.order, "order", "round-robin", "whose request is next: round-robin over the sessions under way (of a preset: its tasks), or random")
	flags.IntVar(&f.o.Active, "active", 64, "sessions under way at a time; a preset has its own number")
	flags.Float64Var(&f.o.CharsPerToken, "chars-per-token", 4, "characters of text that are counted as a token")
	flags.IntVar(&f.o.BlockTokens, "block-tokens", trace.BlockTokens, "tokens of a block")
	flags.IntVar(&f.o.Limit, "requests", 0, "requests to write; 0: all there are, of a preset 4000")
	flags.Uint64Var(&f.o.Seed, "seed", 1, "seed of the random numbers")
	return c
}

func (f *fromTextFlags) check(cmd *cobra.Command) error {
	switch {
	case (f.file == "") == (f.preset == ""):
		return cli.Usagef("name either a file of conversations or a --preset: %s", strings.Join(fromtext.Presets(), ", "))
	case !slices.Contains([]string{"poisson", "even"}, f.arrivals):
		return cli.Usagef("--arrivals %q is neither poisson nor even", f.arrivals)
	case !slices.Contains([]string{"round-robin", "random"}, f.order):
		return cli.Usagef("--order %q is neither round-robin nor random", f.order)
	case len(f.rates) == 0:
		return cli.Usagef("--rps names no rate")
	case len(f.rates) > 1 && f.output == "":
		return cli.Usagef("several rates make a file each: name them with -o FILE")
	}
	for name, zero := range map[string]bool{
		"active": f.o.Active == 0, "chars-per-token": f.o.CharsPerToken == 0, "block-tokens": f.o.BlockTokens == 0, "rps": slices.Contains(f.rates, 0),
	} {
		if zero { // where it means the default in the library
			return cli.Usagef("--%s must be above 0", name)
		}
	}
	if f.preset != "" {
		for _, name := range []string{"active", "chars-per-token"} {
			if cmd.Flags().Changed(name) {
				return cli.Usagef("--%s has no use for a preset", name)
			}
		}
		f.o.Active, f.o.CharsPerToken = 0, 0
	}
	f.o.Even, f.o.Random = f.arrivals == "even", f.order == "random"
	return nil
}

// made is what --json shows of each file.
type made struct {
	File     string  `json:"file"`
	RPS      float64 `json:"rps"`
	Requests int     `json:"requests"`
	Skipped  int     `json:"skipped"` // conversations without an answered question
}

func (t *Tool) fromText(f *fromTextFlags) error {
	var all []made
	for _, rate := range f.rates {
		f.o.RPS = rate
		one := made{File: f.output, RPS: rate}
		if len(f.rates) > 1 {
			one.File = rateFile(f.output, rate)
		}
		if err := t.fromTextAt(f, &one); err != nil {
			return err
		}
		all = append(all, one)
	}
	if n := all[0].Skipped; n > 0 {
		fmt.Fprintf(t.Err, "%s: passed over %d conversations without an answered question\n", f.file, n)
	}
	switch {
	case !*t.JSON || f.output == "":
		return nil
	case len(all) == 1:
		return cli.PrintJSON(t.Out, all[0])
	}
	return cli.PrintJSON(t.Out, all)
}

// fromTextAt writes the file of one rate.
func (t *Tool) fromTextAt(f *fromTextFlags, one *made) (err error) {
	source, shut, err := f.source()
	if errors.Is(err, fromtext.ErrBadOptions) {
		return cli.AsUsage(err)
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shut()) }()
	one.Requests, err = t.writeTrace(source, -1, "from-text", one.File)
	one.Skipped = source.Skipped()
	return err
}

func (f *fromTextFlags) source() (_ *fromtext.Source, shut func() error, err error) {
	if f.preset != "" {
		source, err := fromtext.NewPreset(f.preset, f.o)
		return source, func() error { return nil }, err
	}
	file, err := os.Open(f.file)
	if err != nil {
		return nil, nil, err
	}
	source, err := fromtext.New(file, f.file, f.o)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return source, file.Close, nil
}

// rateFile puts a rate into a file's name: t.jsonl.gz becomes t-rps0.5.jsonl.gz.
func rateFile(name string, rate float64) string {
	stem, zip := strings.CutSuffix(name, ".gz")
	ending := ""
	if at := strings.LastIndexByte(stem, '.'); at > strings.LastIndexByte(stem, '/')+1 {
		stem, ending = stem[:at], stem[at:]
	}
	stem += "-rps" + strconv.FormatFloat(rate, 'g', -1, 64) + ending
	if zip {
		stem += ".gz"
	}
	return stem
}
