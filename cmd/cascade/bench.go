package main

import (
	"slices"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
)

// Programs that this tool becomes, so that it need not link what they have: the
// instruments, and the CUDA driver.
const (
	benchProgram = "cascade-bench"
	gpuProgram   = "cascade-gpu"
)

func (a *app) benchCommand() *cobra.Command {
	return a.other(benchProgram, "make build makes both, install them together").Command("bench", "Measure this machine against its own yardsticks")
}

func (a *app) gpuCommand() *cobra.Command {
	return a.other(gpuProgram, "make build makes both; it needs the C library of the node").Command("gpu", "Look at the GPUs of this node, and measure them")
}

func (a *app) other(program, without string) cli.Other {
	return cli.Other{Program: program, Without: without, Env: a.env, Exec: a.exec}
}

// helpOfOther makes "help bench VERB", of which the help command passes on no VERB, what
// cascade-bench understands; and likewise for cascade-gpu.
func helpOfOther(args []string) []string {
	if len(args) > 2 && args[0] == "help" && (args[1] == "bench" || args[1] == "gpu") {
		return slices.Concat(args[1:], []string{"--help"})
	}
	return args
}
