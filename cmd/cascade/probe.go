package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/cascade"
	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
)

// redisNamespace is where Redis commands of database 0 keep their keys.
const redisNamespace = "redis/0"

func (a *app) probeCommand() *cobra.Command {
	var namespace string
	c := &cobra.Command{
		Use:   "probe KEY...",
		Short: "Tell how much of a chain of keys is cached",
		Long: "Tell how many leading keys of a chain, head first, are cached, how many bytes they have and in which\n" +
			"tiers they are. It leases nothing and counts as no access. Exit status 3: not even the first one.",
		Args: cli.Arity(1, -1),
		RunE: func(_ *cobra.Command, args []string) error { return a.probe(namespace, args) },
	}
	c.Flags().StringVar(&namespace, "namespace", redisNamespace, "namespace")
	return c
}

func (a *app) probe(namespace string, keys []string) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	reply, err := client.Do(append([]string{"CASCADE.PROBE", namespace}, keys...)...)
	if err != nil {
		return refused("probe", err)
	}
	found := probeResult(reply)
	if a.json {
		err = a.printJSON(found)
	} else {
		_, err = fmt.Fprintf(a.out, "%d of %d keys, %s%s\n", found.Hits, len(keys), human(found.Bytes), inTiers(found.Tiers))
	}
	if err == nil && found.Hits == 0 {
		err = fmt.Errorf("probe: key %q: %w", keys[0], errMiss)
	}
	return err
}

func probeResult(reply resp.Reply) cascade.ProbeResult {
	found := cascade.ProbeResult{Hits: int(reply.Field("hits").Int), Bytes: reply.Field("bytes").Int, Tiers: map[string]int{}}
	tiers := reply.Field("tiers").Elems
	for i := 0; i+1 < len(tiers); i += 2 {
		found.Tiers[tiers[i].Text()] = int(tiers[i+1].Int)
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
