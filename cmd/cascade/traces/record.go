package traces

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/glob"
	"cascadekv/internal/record"
	"cascadekv/internal/trace"
)

// leastSalt is the length of a salt that is not found by trying, in bytes.
const leastSalt = 16

// recordFlags are those of trace record.
type recordFlags struct {
	output    string
	salt      string
	namespace string
	o         record.Options
}

func (t *Tool) recordCommand() *cobra.Command {
	var f recordFlags
	c := &cobra.Command{
		Use:   "record [-o FILE]",
		Short: "Record what the clients of a live rank ask for, as a trace with salted hashes",
		Long: "Record what the clients of a live rank ask for, as a trace in Mooncake's form, until it is interrupted, --for is\n" +
			"over or --requests are written. Ids are salted hashes: the file has no keys, no contents and no namespaces, and two\n" +
			"recordings can be joined only if --salt is the same. It asks the rank by its unix socket, as the rank's own user.\n" +
			"docs/traces.md has which commands are put together to one request. Fields of --json (with -o):\n" +
			"  requests, blocks      that were written\n" +
			"  block_tokens          of the trace: pass it to --block-tokens of other verbs\n" +
			"  assumed_block_tokens  requests whose blocks' tokens the rank does not know: --block-tokens counts\n" +
			"  other_block_tokens    requests left out, since their blocks have other tokens; see --namespace\n" +
			"  dropped_commands      commands that came faster than they were read\n" +
			"  cut_requests          ended early: too many were under way\n" +
			"  headless_requests     whose first blocks are not known: their chains began before the recording",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return t.record(cmd.Context(), &f)
		},
	}
	flags := c.Flags()
	flags.StringVarP(&f.output, "output", "o", "", "file to write, compressed if it ends in .gz (default: standard output)")
	cli.DurationVar(flags, &f.o.For, "for", 0, "how long to record; 0: until it is interrupted")
	flags.IntVar(&f.o.Requests, "requests", 0, "end after so many requests; 0: any number")
	flags.StringVar(&f.salt, "salt", "", "secret text that ids are made with, to join recordings of several ranks; keep it as secret as the keys (default: random)")
	flags.StringVar(&f.namespace, "namespace", "", "record namespaces that match this pattern only, such as 'model=llama*'")
	flags.IntVar(&f.o.BlockTokens, "block-tokens", trace.BlockTokens, "tokens of a block of namespaces whose layout does not say it")
	flags.IntVar(&f.o.OutputTokens, "output-tokens", 1, "tokens of each answer: the rank does not see answers")
	return c
}

func (f *recordFlags) check(cmd *cobra.Command) error {
	switch {
	case f.o.For < 0:
		return cli.Usagef("--for %v is negative", f.o.For)
	case f.o.Requests < 0:
		return cli.Usagef("--requests %d is negative", f.o.Requests)
	case f.o.BlockTokens <= 0:
		return cli.Usagef("--block-tokens %d is not above 0", f.o.BlockTokens)
	case f.o.OutputTokens < 0:
		return cli.Usagef("--output-tokens %d is negative", f.o.OutputTokens)
	case cmd.Flags().Changed("salt") && len(f.salt) < leastSalt:
		return cli.Usagef("--salt has %d bytes: with less than %d it can be guessed", len(f.salt), leastSalt)
	}
	if f.namespace != "" {
		pattern, ok := glob.Compile(f.namespace)
		if !ok {
			return cli.Usagef("--namespace: the pattern is longer than %d bytes", glob.MaxPattern)
		}
		f.o.Namespace = func(ns string) bool { return pattern.Match(ns) }
	}
	f.o.Salt = []byte(f.salt)
	if f.salt == "" {
		f.o.Salt = make([]byte, 2*leastSalt)
		_, _ = rand.Read(f.o.Salt) // it does not fail
	}
	return nil
}

func (t *Tool) record(ctx context.Context, f *recordFlags) (err error) {
	if f.o.Client, err = t.Dial(); err != nil {
		return err
	}
	defer f.o.Client.Close()
	w := trace.NewWriter(t.Out)
	if f.output != "" {
		if w, err = trace.Create(f.output); err != nil {
			return err
		}
	}
	defer w.Abort()
	total := int64(f.o.Requests)
	if total == 0 {
		total = -1 // not known
	}
	bar := t.progress(total, "record", false)
	f.o.Started = func() { fmt.Fprintln(t.Err, "recording; an interrupt (Ctrl-C) ends it") }
	f.o.Write = func(q *trace.Request) error {
		_ = bar.Add(1) // drawing is best effort
		return w.Write(q)
	}
	result, err := record.Run(ctx, f.o)
	_ = bar.Finish() // likewise
	if err != nil && result.Requests == 0 {
		return t.Refused("record", err)
	}
	if err = errors.Join(err, w.Close()); err == nil && *t.JSON && f.output != "" {
		return cli.PrintJSON(t.Out, struct {
			File string `json:"file"`
			record.Result
		}{f.output, result})
	}
	fmt.Fprint(t.Err, summary(f, result))
	return err
}

// summary is what was recorded, for people.
func summary(f *recordFlags, r record.Result) string {
	s := fmt.Sprintf("recorded %d requests of %d blocks in %v, from %d commands\n", r.Requests, r.Blocks, time.Duration(r.Milliseconds)*time.Millisecond, r.Commands)
	for _, line := range []struct {
		n    uint64
		what string
	}{
		{r.Dropped, "commands were dropped: they came faster than they were read"},
		{uint64(r.Cut), "requests were ended early: too many were under way, or one was too long"},
		{uint64(r.Headless), "requests lack their first blocks: their chains began before the recording"},
		{uint64(r.OtherTokens), "requests were left out: their blocks have other tokens than the trace's; record their --namespace by itself"},
		{uint64(r.Assumed), "requests are of namespaces without a layout: " + strconv.Itoa(r.BlockTokens) + " tokens a block are assumed"},
	} {
		if line.n > 0 {
			s += fmt.Sprintf("  %d %s\n", line.n, line.what)
		}
	}
	if r.Requests > 0 && r.BlockTokens != trace.BlockTokens {
		s += fmt.Sprintf("  read it with --block-tokens %d\n", r.BlockTokens)
	}
	return s
}
