package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/dht"
	"cascadekv/internal/cli"
)

func (a *app) ringCommand() *cobra.Command {
	var namespace, key string
	c := &cobra.Command{
		Use:   "ring --key KEY",
		Short: "Tell where a key lives among the ranks, and why",
		Long: "Tell which ranks are the homes of a key, by what rule, and which ranks have its block, as the rank that\n" +
			"is asked sees it. Exit status 3: no rank has the block.",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if key == "" {
				return cli.Usagef("ring: --key is missing: name the key")
			}
			return a.ring(namespace, key)
		},
	}
	c.Flags().StringVar(&key, "key", "", "the key")
	c.Flags().StringVar(&namespace, "namespace", redisNamespace, "namespace")
	return c
}

func (a *app) ring(namespace, key string) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	var k dht.KeyPlace
	if _, err := ask(client, "ring", &k, "CASCADE.RING", namespace, key); err != nil {
		return err
	}
	err = a.show(k, func() error { return a.printRing(k) })
	if err == nil && !k.Stored {
		return errMiss
	}
	return err
}

func (a *app) printRing(k dht.KeyPlace) error {
	rows := [][]string{
		{"hash", k.Hash + " of namespace and key"},
		{"partition", fmt.Sprintf("%d of %d", k.Partition, k.Partitions)},
		{"ring", fmt.Sprintf("%d ranks, digest %s, placement version %d", k.Ranks, k.Digest, k.Version)},
	}
	for _, h := range k.Homes {
		rows = append(rows, []string{h.Role, fmt.Sprintf("rank %d: %s", h.Rank, h.Why)})
	}
	if !k.Stored {
		rows = append(rows, []string{"block", "no rank has it"})
	}
	if len(k.Tiers) > 0 {
		rows = append(rows, []string{"block", fmt.Sprintf("%s, served on rank %d from %s", k.ID, k.Rank, strings.Join(k.Tiers, ", "))})
	}
	for _, c := range k.Copies {
		var where []string
		if c.Memory {
			where = append(where, "memory")
		}
		if c.Segment {
			where = append(where, "a segment of the shared file system")
		}
		rows = append(rows, []string{"copy", fmt.Sprintf("rank %d, in %s", c.Rank, strings.Join(where, " and "))})
	}
	return a.table(rows)
}

// rankRows describes each rank on a line: its share of the ring, and what it
// says of itself.
func rankRows(ranks []dht.RankStatus) [][]string {
	rows := [][]string{{"RANK", "STATE", "HOST", "FABRIC ADDRESS", "RING", "BLOCKS", "STORED", "HITS", "MISSES", "TIERS: BLOCKS, HITS"}}
	for _, r := range ranks {
		row := []string{strconv.Itoa(int(r.Rank)), r.State, cli.Dash(r.Host), cli.Dash(r.Addr), strconv.FormatFloat(100*r.Share, 'f', 1, 64) + " %"}
		var s rankStats
		if len(r.Report) == 0 || json.Unmarshal(r.Report, &s) != nil {
			rows = append(rows, append(row, "-", "-", "-", "-", cli.Dash(r.Error)))
			continue
		}
		var tiers []string
		for _, t := range s.Tiers {
			tiers = append(tiers, fmt.Sprintf("%s %d, %d", t.Name, t.Usage.Blocks, t.Hits))
		}
		rows = append(rows, append(row, strconv.Itoa(s.Blocks), cli.Human(s.BytesStored), count(s.Hits), count(s.Misses), strings.Join(tiers, "; ")))
	}
	return rows
}
