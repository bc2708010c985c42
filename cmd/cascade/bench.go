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

// otherCommands are the verbs of these programs.
func (a *app) otherCommands() []*cobra.Command {
	bench := cli.Other{Program: benchProgram, Without: "make build makes both, install them together", Env: a.env, Exec: a.exec}
	gpu := cli.Other{Program: gpuProgram, Without: "make build makes both; it needs the C library of the node", Env: a.env, Exec: a.exec}
	return []*cobra.Command{
		bench.Command("bench", "Measure this machine against its own yardsticks"),
		gpu.Command("gpu", "Look at the GPUs of this node, and measure them"),
	}
}

// helpOfOther makes "help bench VERB", of which the help command passes on no VERB, what
// cascade-bench understands; and likewise for cascade-gpu.
func helpOfOther(args []string) []string {
	if len(args) > 2 && args[0] == "help" && (args[1] == "bench" || args[1] == "gpu") {
		return slices.Concat(args[1:], []string{"--help"})
	}
	return args
}
