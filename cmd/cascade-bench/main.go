package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	_ "cascadekv/internal/malloc" // one C arena
	"cascadekv/internal/units"
)

// app is what the verbs share. It is used by one goroutine.
type app struct {
	out, err io.Writer
	json     bool
	exec     func(path string, args, env []string) error // replaces this program, in place of syscall.Exec; for tests
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
	c := cli.Part("cascade-bench", "bench", "Measure this machine against its own yardsticks", &a.json)
	c.AddCommand(a.respCommand(), a.putCommand(), a.indexCommand(), a.fabricCommand(), a.fabricRankCommand(), a.networkCommand(), a.codecCommand(), a.tunerCommand(), a.stagesCommand(), a.coldCommand(), a.remoteCommand(), a.lustreCommand(), a.slackCommand(), a.scatterCommand(), a.gioCommand(), a.gioDeviceCommand(), a.hbmCommand())
	return c
}

// verb makes a command without arguments.
func verb(name, short, long string, run func(*cobra.Command) error) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: long, Args: cli.Arity(0, 0), RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd) }}
}

// print writes res as JSON, or as tables.
func (a *app) print(res any, tables ...[][]string) error {
	if a.json {
		return cli.PrintJSON(a.out, res)
	}
	for _, rows := range tables {
		if err := cli.PrintTable(a.out, rows); err != nil {
			return err
		}
	}
	return nil
}

// row makes the cells of a table.
func row(cells ...any) []string {
	texts := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case float64:
			texts[i] = strconv.FormatFloat(c, 'g', 4, 64)
		case *float64:
			texts[i] = "-"
			if c != nil {
				texts[i] = row(*c)[0]
			}
		default:
			texts[i] = fmt.Sprint(c)
		}
	}
	return texts
}

// size is a number of bytes as people write it.
func size[N int | int64 | uint64](n N) string { return units.Bytes(n).String() }

// rounds returns a progress callback that draws a bar.
func (a *app) rounds(what string) func(done, total int) {
	bar := cli.Progress(a.err, -1, what, false)
	return func(done, total int) {
		bar.ChangeMax(total)
		_ = bar.Set(done) // drawing is best effort
	}
}
