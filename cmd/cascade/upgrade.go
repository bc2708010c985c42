package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
)

const (
	// upgradeWait is how long connections in the middle of a command are waited
	// for unless --wait says otherwise.
	upgradeWait = 10 * time.Second

	// upgradePatience bounds the rest: the new program reads what is in memory.
	upgradePatience = 5 * time.Minute
)

// upgraded is the answer to CASCADE.UPGRADE.
type upgraded struct {
	Version     string `json:"version"`
	PID         int64  `json:"pid"`
	PausedUS    int64  `json:"paused_us"`
	Connections int64  `json:"connections"`
}

func (a *app) upgradeCommand() *cobra.Command {
	var binary string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace a running rank by another version, without a client noticing",
		Long: "Replace a running rank by another version: the program that lies now where it was started from,\n" +
			"or --binary, if the rank's upgrade_binaries lists it. Its process, arena, listeners and connections stay; clients wait for a moment.\n" +
			"If the new program can not take over, or a client does not end its command, the old one goes on.",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.upgrade(binary, wait) },
	}
	c.Flags().StringVar(&binary, "binary", "", "the program, one of the rank's upgrade_binaries (default: where the rank was started from)")
	cli.DurationVar(c.Flags(), &wait, "wait", upgradeWait, "longest wait for clients to end their commands")
	return c
}

func (a *app) upgrade(binary string, wait time.Duration) error {
	loaded, err := a.config()
	if err != nil {
		return err
	}
	if network, address := a.address(&loaded.Config); network != "unix" {
		return cli.Usagef("upgrade: a rank is upgraded on its unix socket, by its own user; %s is none; name it with --socket", address)
	}
	words := []string{"CASCADE.UPGRADE", "WAIT", strconv.FormatInt(max(0, wait.Milliseconds()), 10)}
	if binary != "" {
		path, err := filepath.Abs(binary)
		if err != nil {
			return fmt.Errorf("upgrade: %w", err)
		}
		words = append(words, "BINARY", path)
	}
	a.timeout = wait + upgradePatience
	client, err := a.dialWith(loaded)
	if err != nil {
		return err
	}
	defer client.Close()
	reply, err := client.Do(words...)
	var server *resp.ServerError
	switch {
	case errors.As(err, &server):
		return fmt.Errorf("the rank goes on as it was: %w", refused("upgrade", err))
	case err != nil:
		return fmt.Errorf("upgrade: no answer: %w; the rank's log says what became of it, `cascade status` whether it runs", err)
	}
	u := upgraded{
		Version: reply.Field("version").Text(), PID: reply.Field("pid").Int,
		PausedUS: reply.Field("paused_us").Int, Connections: reply.Field("connections").Int,
	}
	if a.json {
		return a.printJSON(u)
	}
	_, err = fmt.Fprintf(a.out, "upgraded to %s (process %d): %d connections waited %v\n",
		u.Version, u.PID, u.Connections, (time.Duration(u.PausedUS) * time.Microsecond).Round(100*time.Microsecond))
	return err
}
