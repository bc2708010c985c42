package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cascade"
	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
)

// redisNamespace is where Redis commands of database 0 keep their keys.
const redisNamespace = "redis/0"

func (a *app) probeCommand() *cobra.Command {
	var namespace string
	var perBlock time.Duration
	c := &cobra.Command{
		Use:   "probe KEY...",
		Short: "Tell how much of a chain of keys is cached, and what is worth loading",
		Long: "Tell how many leading keys of a chain, head first, are cached, how many bytes they have, in which\n" +
			"tiers they are and about how long it takes to load them. With --block-time, which is how long it takes\n" +
			"to compute one block, also how many of them to load so that all are there soonest.\n" +
			"It leases nothing and counts as no access. Exit status 3: not even the first one.",
		Args: cli.Arity(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.probe(namespace, args, perBlock, c.Flags().Changed("block-time"))
		},
	}
	c.Flags().StringVar(&namespace, "namespace", redisNamespace, "namespace")
	c.Flags().DurationVar(&perBlock, "block-time", 0, "how long it takes to compute a block, such as 2ms")
	return c
}

// probed is the answer to a probe.
type probed struct {
	cascade.ProbeResult
	LoadUS   int64  `json:"load_us"`             // of the whole prefix
	Blocks   *int64 `json:"blocks,omitempty"`    // that are worth loading
	BlocksUS *int64 `json:"blocks_us,omitempty"` // how long these take
}

func (a *app) probe(namespace string, keys []string, perBlock time.Duration, advise bool) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	words := []string{"CASCADE.PROBE", namespace}
	if advise {
		words = []string{"CASCADE.ADVISE", namespace, strconv.FormatInt(perBlock.Microseconds(), 10)}
	}
	reply, err := client.Do(append(words, keys...)...)
	if err != nil {
		return refused("probe", err)
	}
	found := probed{ProbeResult: probeResult(reply), LoadUS: reply.Field("load_us").Int}
	if advise {
		blocks, took := reply.Field("blocks").Int, reply.Field("blocks_us").Int
		found.Blocks, found.BlocksUS = &blocks, &took
	}
	if a.json {
		err = a.printJSON(found)
	} else {
		_, err = fmt.Fprintln(a.out, found.text(len(keys)))
	}
	if err == nil && found.Hits == 0 {
		err = fmt.Errorf("probe: key %q: %w", keys[0], errMiss)
	}
	return err
}

func (p *probed) text(keys int) string {
	text := fmt.Sprintf("%d of %d keys, %s%s", p.Hits, keys, cli.Human(p.Bytes), inTiers(p.Tiers))
	if p.LoadUS > 0 {
		text += ", " + microseconds(p.LoadUS) + " to load"
	}
	switch {
	case p.Blocks == nil || p.Hits == 0:
	case *p.Blocks == 0:
		text += "; computing them is faster"
	case int(*p.Blocks) == p.Hits:
		text += "; worth loading"
	default:
		text += fmt.Sprintf("; the first %d are worth loading, in %s", *p.Blocks, microseconds(*p.BlocksUS))
	}
	return text
}

func microseconds(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

func probeResult(reply resp.Reply) cascade.ProbeResult {
	found := cascade.ProbeResult{Hits: int(reply.Field("hits").Int), Bytes: reply.Field("bytes").Int, Tiers: map[string]int{}, Runs: []cascade.Run{}}
	tiers := reply.Field("tiers").Elems
	for i := 0; i+1 < len(tiers); i += 2 {
		found.Tiers[tiers[i].Text()] = int(tiers[i+1].Int)
	}
	for _, r := range reply.Field("runs").Elems {
		if len(r.Elems) >= 4 {
			found.Runs = append(found.Runs, cascade.Run{Tier: r.Elems[0].Text(), Hits: int(r.Elems[1].Int), Bytes: r.Elems[2].Int, LoadUS: r.Elems[3].Int})
		}
	}
	return found
}

func inTiers(tiers map[string]int) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(tiers)) {
		words = append(words, fmt.Sprintf("%d in %s", tiers[name], name))
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ", ")
}
