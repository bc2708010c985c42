package main

import (
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
)

// hbmCommand becomes cascade-gpu, which may load the CUDA driver.
func (a *app) hbmCommand() *cobra.Command {
	o := cli.Other{Program: "cascade-gpu", Before: []string{"hbm"}, Without: "make build makes both; it needs the C library of the node", Env: os.Environ(), Exec: a.exec}
	if o.Exec == nil {
		o.Exec = syscall.Exec
	}
	return o.Command("hbm", "Compare copies of blocks to and from a GPU with a plain copy of pinned memory, alternating")
}
