package admin

import (
	"strconv"

	"cascadekv/cascade"
)

// ConfigValues are what CONFIG GET has: Redis's names for what has a counterpart in a rank.
func ConfigValues(st cascade.Stats, maxClients, maxBulk, databases int) map[string]string {
	var memory int64
	policy := ""
	for _, t := range st.Tiers {
		if t.Policy != "" {
			memory += t.Usage.Capacity
			policy = t.Policy
		}
	}
	return map[string]string{
		"maxmemory":          strconv.FormatInt(memory, 10),
		"maxmemory-policy":   policy,
		"maxclients":         strconv.Itoa(maxClients),
		"proto-max-bulk-len": strconv.Itoa(maxBulk),
		"databases":          strconv.Itoa(databases),
		"appendonly":         "no",
		"save":               "",
	}
}
