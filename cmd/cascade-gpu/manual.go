//go:build manual

package main

import (
	"os"

	"cascadekv/cmd/manual"
)

// With the tag manual the program writes its man page and completions, and does nothing else.
func init() { os.Exit(manual.Main(os.Args[1:], (&app{}).root(), 1)) }
