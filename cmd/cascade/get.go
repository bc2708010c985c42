package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/cli"
)

func (a *app) getCommand() *cobra.Command {
	var output, namespace string
	var byID bool
	c := &cobra.Command{
		Use:   "get KEY",
		Short: "Write a block's bytes to standard output or a file",
		Long: "Write a block's bytes to standard output or a file. With --json the bytes go to the file only,\n" +
			"if one is named, and standard output gets the block's id and size. With --id KEY is the id that\n" +
			"put printed, and the bytes are those of any name on this rank, or on another one: there once they\n" +
			"are in the cold tier, and from 4 KiB on.",
		Args: cli.Arity(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case byID && c.Flags().Changed("namespace"):
				return cli.Usagef("get: an id stands for the bytes of all namespaces: --id excludes --namespace")
			case byID:
				namespace = directory.Contents
			}
			return a.get(namespace, args[0], output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	c.Flags().StringVar(&namespace, "namespace", redisNamespace, "namespace")
	c.Flags().BoolVar(&byID, "id", false, "KEY is a block's id")
	return c
}

func (a *app) get(namespace, key, output string) error {
	loaded, err := a.config()
	if err != nil {
		return err
	}
	client, err := a.dialWith(loaded)
	if err != nil {
		return err
	}
	defer client.Close()
	value, err := getValue(client, namespace, key)
	if err != nil {
		return err
	}
	if output != "" {
		if err := os.WriteFile(output, value, 0o600); err != nil {
			return fmt.Errorf("get: %w", err)
		}
	}
	if a.json {
		return a.printJSON(map[string]any{"id": block.Sum(loaded.IDBits, value).String(), "key": key, "namespace": namespace, "bytes": len(value)})
	}
	if output != "" {
		return nil
	}
	if cli.IsTerminal(a.out) && bytes.IndexByte(value[:min(len(value), 4096)], 0) >= 0 {
		return cli.Usagef("get: the block is binary and standard output is a terminal; use -o FILE or a pipe")
	}
	_, err = a.out.Write(value)
	return err
}
