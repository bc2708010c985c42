package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/block"
	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
)

type putFlags struct {
	namespace, key, parent string
	prefix, bound          bool
	ttl                    time.Duration
}

func (a *app) putCommand() *cobra.Command {
	var f putFlags
	c := &cobra.Command{
		Use:   "put [--key KEY] [FILE [FILE]]",
		Short: "Store a block and print its id",
		Long: "Store a block and print its id: the bytes of one file, of two (key data, then value data),\n" +
			"or of standard input when no file or - is named. Without --key the id is the key.\n" +
			"Of 1 MiB and more the rank is asked first whether some rank has the bytes.",
		Args: cli.Arity(0, 2),
		RunE: func(_ *cobra.Command, args []string) error { return a.put(f, args) },
	}
	flags := c.Flags()
	flags.StringVar(&f.key, "key", "", "key to store it under (default: the block's id)")
	flags.StringVar(&f.namespace, "namespace", redisNamespace, "namespace")
	flags.StringVar(&f.parent, "parent", "", "key of the block before this one in its chain")
	flags.BoolVar(&f.prefix, "prefix", false, "mark it as a shared prefix")
	flags.BoolVar(&f.bound, "bound", false, "visible only while its parent is")
	cli.DurationVar(flags, &f.ttl, "ttl", 0, "forget the key after this time; 0: never")
	return c
}

func (a *app) put(f putFlags, files []string) error {
	if f.bound && f.parent == "" {
		return cli.Usagef("put: --bound needs --parent")
	}
	loaded, err := a.config()
	if err != nil {
		return err
	}
	data, err := a.readBlock(files)
	if err != nil {
		return err
	}
	client, err := a.dialWith(loaded)
	if err != nil {
		return err
	}
	defer client.Close()
	id := block.Sum(loaded.IDBits, data).String()
	if f.key == "" {
		f.key = id
	}
	stored, err := f.store(client, id, data)
	if err != nil {
		return refused("put", err)
	}
	if a.json {
		return a.printJSON(map[string]any{"id": stored, "key": f.key, "namespace": f.namespace, "bytes": len(data)})
	}
	_, err = fmt.Fprintln(a.out, stored)
	return err
}

// askFirst is from how many bytes on a block is put by its id, if some rank has it: to receive
// and to hash a MiB takes a rank about a millisecond, to ask and to read it elsewhere not more.
const askFirst = 1 << 20

// store puts a block, whose id is computed, and returns the id that the rank has for it.
func (f putFlags) store(client *resp.Client, id string, data []byte) (string, error) {
	if len(data) >= askFirst {
		words := slices.Insert(f.arguments("CASCADE.ALIAS"), 2, id)
		if reply, err := client.Do(words...); err == nil && !reply.Null() {
			return reply.Text(), nil
		} // a rank of before knows no such command
	}
	client.SendValue(2, data, f.arguments("CASCADE.PUT")...)
	if err := client.Flush(); err != nil {
		return "", err
	}
	reply, err := client.Receive()
	return reply.Text(), err
}

// arguments is CASCADE.PUT without the value, or CASCADE.ALIAS without the id, which belongs at 2.
func (f putFlags) arguments(command string) []string {
	args := []string{command, f.key, "NS", f.namespace}
	if f.parent != "" {
		args = append(args, "PARENT", f.parent)
	}
	if f.prefix {
		args = append(args, "PREFIX")
	}
	if f.bound {
		args = append(args, "BOUND")
	}
	if f.ttl > 0 {
		args = append(args, "PX", strconv.FormatInt(max(1, f.ttl.Milliseconds()), 10))
	}
	return args
}

// readBlock returns the files' bytes one after the other.
func (a *app) readBlock(files []string) ([]byte, error) {
	if len(files) == 0 {
		files = []string{"-"}
	}
	if len(files) == 2 && files[0] == "-" && files[1] == "-" {
		return nil, cli.Usagef("put: standard input can be read only once")
	}
	var data []byte
	for _, name := range files {
		part, err := a.readLimited(name)
		if err != nil {
			return nil, err
		}
		data = append(data, part...)
		if len(data) > block.MaxSize {
			return nil, fmt.Errorf("put: %v has more than %s, the largest block; split it", files, cli.Human(block.MaxSize))
		}
	}
	return data, nil
}

func (a *app) readLimited(name string) ([]byte, error) {
	from := a.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("put: %w", err)
		}
		defer f.Close()
		from = f
	}
	part, err := io.ReadAll(io.LimitReader(from, block.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("put: %s: %w", name, err)
	}
	return part, nil
}

// getValue asks for one value; miss is errMiss.
func getValue(client *resp.Client, namespace, key string) ([]byte, error) {
	reply, err := client.Do("CASCADE.GET", "NS", namespace, key)
	switch {
	case isMiss(err), err == nil && reply.Null():
		return nil, fmt.Errorf("get: key %q: %w", key, errMiss)
	case err != nil:
		return nil, refused("get", err)
	}
	return reply.Str, nil
}
