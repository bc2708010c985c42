package admin

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"cascadekv/cascade"
)

// RedisVersion is the Redis whose behaviour clients may expect.
const RedisVersion = "7.0.0"

// infoSections in the order in which INFO prints them.
var infoSections = []struct {
	name  string
	lines func(Snapshot, Redis) []string
}{
	{"Server", infoServer},
	{"Clients", infoClients},
	{"Memory", infoMemory},
	{"Stats", infoStats},
	{"Replication", infoReplication},
	{"Keyspace", infoKeyspace},
	{"Cascade", infoCascade},
}

// Redis is what INFO reports of a server beside its snapshot.
type Redis struct {
	Socket     string   // path
	MaxClients int      // 0: no bound
	Arena      string   // path, "" for none
	Databases  []string // namespace of each
}

// Info renders a snapshot as Redis's INFO does: the sections that are asked for, in
// lower case, or all of them.
func Info(s Snapshot, r Redis, sections map[string]bool) string {
	all := len(sections) == 0 || sections["all"] || sections["default"] || sections["everything"]
	var b strings.Builder
	for _, section := range infoSections {
		if !all && !sections[strings.ToLower(section.name)] {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		fmt.Fprintf(&b, "# %s\r\n%s\r\n", section.name, strings.Join(section.lines(s, r), "\r\n"))
	}
	return b.String()
}

func infoServer(s Snapshot, r Redis) []string {
	return []string{
		"redis_version:" + RedisVersion,
		"redis_mode:standalone",
		"cascade_version:" + s.Version,
		"os:" + runtime.GOOS + " " + runtime.GOARCH,
		fmt.Sprintf("process_id:%d", os.Getpid()),
		fmt.Sprintf("uptime_in_seconds:%d", int64(s.UptimeSeconds)),
		"unix_socket:" + r.Socket,
	}
}

func infoClients(s Snapshot, r Redis) []string {
	return []string{
		fmt.Sprintf("connected_clients:%d", s.Connections),
		fmt.Sprintf("maxclients:%d", r.MaxClients),
	}
}

func infoMemory(s Snapshot, _ Redis) []string {
	var used, capacity int64
	policy := ""
	for _, t := range s.Tiers {
		if t.Policy != "" {
			used, capacity, policy = used+t.Usage.Used, capacity+t.Usage.Capacity, t.Policy
		}
	}
	return []string{
		fmt.Sprintf("used_memory:%d", used),
		fmt.Sprintf("maxmemory:%d", capacity),
		"maxmemory_policy:" + policy,
		fmt.Sprintf("cascade_bytes_stored:%d", s.BytesStored),
		fmt.Sprintf("cascade_bytes_referenced:%d", s.BytesReferenced),
		fmt.Sprintf("cascade_own_bytes_stored:%d", s.OwnStored),
		fmt.Sprintf("cascade_own_bytes_referenced:%d", s.OwnReferenced),
	}
}

func infoStats(s Snapshot, _ Redis) []string {
	lines := []string{
		fmt.Sprintf("total_commands_processed:%d", s.Commands),
		fmt.Sprintf("keyspace_hits:%d", s.Hits),
		fmt.Sprintf("keyspace_misses:%d", s.Misses),
		fmt.Sprintf("rejected_sets:%d", s.Rejected),
	}
	var evicted uint64
	for _, t := range s.Tiers {
		evicted += t.Evicted
		lines = append(lines, fmt.Sprintf("cascade_hits_%s:%d", t.Name, t.Hits))
	}
	return append(lines, fmt.Sprintf("evicted_keys:%d", evicted))
}

func infoReplication(Snapshot, Redis) []string {
	return []string{"role:master", "connected_slaves:0"}
}

func infoCascade(s Snapshot, r Redis) []string {
	return []string{
		"cascade_arena:" + r.Arena,
		fmt.Sprintf("cascade_held_bytes:%d", s.Held.Bytes),
		fmt.Sprintf("cascade_held_views:%d", s.Held.Views),
		fmt.Sprintf("cascade_held_pins:%d", s.Held.Pins),
		fmt.Sprintf("cascade_held_stages:%d", s.Held.Stages),
		fmt.Sprintf("cascade_regions:%d", s.Held.Regions),
		fmt.Sprintf("cascade_jobs:%d", s.Held.Jobs),
		fmt.Sprintf("cascade_leases:%d", s.Leases),
	}
}

func infoKeyspace(s Snapshot, r Redis) []string {
	var lines []string
	for n, name := range r.Databases {
		i := slices.IndexFunc(s.Namespaces, func(ns cascade.NamespaceStats) bool { return ns.Name == name })
		if i < 0 {
			continue
		}
		if keys := s.Namespaces[i].Names + s.Namespaces[i].Spilled; keys > 0 {
			lines = append(lines, fmt.Sprintf("db%d:keys=%d,expires=0,avg_ttl=0", n, keys))
		}
	}
	return lines
}
