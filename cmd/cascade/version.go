package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/internal/buildinfo"
	"cascadekv/internal/cli"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print what this program was built from",
		Args:  cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := buildinfo.Read()
			if a.json {
				return a.printJSON(v)
			}
			modified := ""
			if v.Modified {
				modified = ", modified"
			}
			_, err := fmt.Fprintf(a.out, "cascade %s (%s%s) %s %s\n", v.Version, v.Revision, modified, v.Go, v.Platform)
			return err
		},
	}
}
