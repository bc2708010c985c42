package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/resp"
	"cascadekv/internal/units"
	"cascadekv/tiers/shm"
)

const (
	poll     = 100 * time.Millisecond
	patience = 10 * time.Second // with an answer of the rank, if there is so much time
	command  = "CASCADE.DRAIN"
	coldTier = "lustre" // in statistics
)

// Tool is what the verb has from the program around it.
type Tool struct {
	Out, Err io.Writer
	JSON     *bool

	Config  func() (*config.Loaded, error)
	Address func(c *config.Config) (network, address string)
	// Dial connects to the rank; timeout bounds each answer.
	Dial func(c *config.Loaded, timeout time.Duration) (*resp.Client, error)
}

// options are the flags.
type options struct {
	rank     int // -1: whichever is here
	stay     bool
	deadline time.Duration
}

// Result is what became of the rank.
type Result struct {
	Rank    *int   `json:"rank"`    // nil: it is alone, and reports no number
	Written int64  `json:"written"` // blocks, while it served
	Left    int    `json:"left_blocks"`
	Bytes   int64  `json:"left_bytes"`
	Ended   bool   `json:"ended"`
	Arena   string `json:"arena,omitempty"` // that it left
}

// stats are those of a rank that count here.
type stats struct {
	DirtyBlocks int   `json:"dirty_blocks"`
	DirtyBytes  int64 `json:"dirty_bytes"`
	Tiers       []struct {
		Name string `json:"name"`
	} `json:"tiers"`
	Peers *struct {
		Rank int `json:"rank"`
	} `json:"peers"`
}

// Command returns the verb drain.
func (t *Tool) Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "drain [--rank N] [--stay]",
		Short: "Empty a rank: it writes to lustre what only it has, leaves the ring and ends",
		Long: "Empty the rank of this node, to take the node out: it writes to lustre what only it has, what is shared or was\n" +
			"used first, and answers meanwhile; then it leaves the ring, writes what came in between, and ends.\n" +
			"Exit status 0: all of it is written. Else the rank goes on, or its arena stays for the next one.",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), o) },
	}
	f := c.Flags()
	f.IntVar(&o.rank, "rank", -1, "drain it only if it is this rank")
	f.BoolVar(&o.stay, "stay", false, "write, and let the rank go on")
	cli.DurationVar(f, &o.deadline, "deadline", 10*time.Minute, "how long all of it may take")
	return c
}

func (t *Tool) run(ctx context.Context, o options) error {
	loaded, err := t.Config()
	if err != nil {
		return err
	}
	network, address := t.Address(&loaded.Config)
	if network != "unix" && !o.stay {
		return cli.Usagef("drain: a rank is ended on its own node, by its user; %s is no unix socket: name it with --socket, or say --stay", address)
	}
	if o.deadline <= 0 {
		return cli.Usagef("drain: --deadline %v: it must be above 0", o.deadline)
	}
	ctx, cancel := context.WithTimeout(ctx, o.deadline)
	defer cancel()
	d := &draining{Tool: t, options: o, config: loaded, address: address}
	err = d.write(ctx)
	if err == nil && !o.stay {
		err = d.end(ctx)
	}
	if err != nil {
		err = fmt.Errorf("drain: %w", err)
	}
	if *t.JSON && d.known {
		return errors.Join(cli.PrintJSON(t.Out, d.Result), err)
	}
	if err == nil {
		what := "it goes on"
		if d.Ended {
			what = "it has left and ended"
		}
		_, err = fmt.Fprintf(t.Out, "all that only the rank had is in lustre, %d blocks of it written now; %s\n", d.Written, what)
	}
	return err
}

// draining is one run of the verb.
type draining struct {
	*Tool
	options
	Result
	config  *config.Loaded
	address string
	known   bool // the rank has answered, and is the one that is meant
	client  *resp.Client
	arena   string
}

// look reads the rank's statistics into the result.
func (d *draining) look() (s stats, err error) {
	reply, err := d.client.Do("CASCADE.STATS")
	if err == nil {
		err = json.Unmarshal(reply.Str, &s)
	}
	if err != nil {
		return s, fmt.Errorf("the rank's statistics: %w", err)
	}
	d.Left, d.Bytes = s.DirtyBlocks, s.DirtyBytes
	return s, nil
}

// meet connects to the rank and checks that it is the one that is meant, and can be drained.
func (d *draining) meet() (s stats, err error) {
	if d.client, err = d.Dial(d.config, min(d.deadline, patience)); err != nil {
		return s, err
	}
	if s, err = d.look(); err != nil {
		return s, err
	}
	if s.Peers != nil {
		d.Rank = &s.Peers.Rank
	}
	if d.rank >= 0 {
		switch {
		case d.Rank == nil && d.config.Rank != d.rank:
			return s, cli.Usagef("drain: the rank at %s is alone, and configured to be rank %d, not %d", d.address, d.config.Rank, d.rank)
		case d.Rank != nil && *d.Rank != d.rank:
			return s, cli.Usagef("drain: the rank at %s is rank %d, not %d: run this on that one's node, which cascade status names; in a job: srun --overlap --nodes=1 --ntasks=1 --nodelist=NODE cascade drain --rank %d",
				d.address, *d.Rank, d.rank, d.rank)
		}
	}
	has := false
	for _, tier := range s.Tiers {
		has = has || tier.Name == coldTier
	}
	if !has {
		return s, fmt.Errorf("the rank at %s has no lustre.dir to write to; it goes on", d.address)
	}
	info, err := d.client.Do("INFO", "cascade")
	for line := range strings.SplitSeq(string(info.Str), "\r\n") {
		if path, is := strings.CutPrefix(line, "cascade_arena:"); is {
			d.arena = path
		}
	}
	d.known = err == nil
	return s, err
}

// write has the rank write what is dirty, and shows how far it is.
func (d *draining) write(ctx context.Context) error {
	type outcome struct {
		reply resp.Reply
		err   error
	}
	done := make(chan outcome, 1)
	first, err := d.meet()
	if d.client != nil {
		defer d.client.Close()
	}
	if err != nil {
		return err
	}
	writer, err := d.Dial(d.config, d.deadline)
	if err != nil {
		return err
	}
	go func() {
		defer writer.Close()
		reply, err := writer.Do(command)
		done <- outcome{reply, err}
	}()
	bar := cli.Progress(d.Err, max(1, first.DirtyBytes), "written", true)
	defer func() { _ = bar.Finish() }()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case o := <-done:
			if o.err != nil {
				return fmt.Errorf("%w; the rank goes on", o.err)
			}
			d.Written = o.reply.Int
			_, err := d.look()
			return err
		case <-tick.C:
			if _, err := d.look(); err != nil {
				return err
			}
			_ = bar.Set64(max(0, first.DirtyBytes-d.Bytes)) // more may have come
		case <-ctx.Done():
			return d.late(ctx)
		}
	}
}

func (d *draining) late(ctx context.Context) error {
	return fmt.Errorf("not all is written: %d blocks, %s, when it was last heard of; the rank goes on, and so may its drain: %w", d.Left, units.Bytes(d.Bytes).Human(), ctx.Err())
}

// end has the rank leave the ring and end, and judges by what it leaves whether all is written.
func (d *draining) end(ctx context.Context) error {
	fd, err := server(d.address, d.config.ServerUIDs)
	if err != nil {
		return fmt.Errorf("%w; all was written, and the rank goes on", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("SIGTERM: %w; all was written, and the rank goes on", err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(poll.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("the rank's end: %w", err)
		}
		if n > 0 {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the rank got SIGTERM, and has not ended yet: %w", ctx.Err())
		}
	}
	d.Ended = true
	left, err := shm.Look(d.arena)
	if errors.Is(err, os.ErrNotExist) || left.State == shm.Live { // the next rank has it by now
		d.Left, d.Bytes = 0, 0
		return nil
	}
	d.Arena = d.arena
	if err != nil || d.config.Shm.Keep {
		return err
	}
	return fmt.Errorf("the rank has ended and its arena stays: not all of what came last is written, its log says why; %s has %d blocks, and cascaded --rescue writes them", d.arena, left.Blocks)
}
