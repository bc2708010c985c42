package server

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"cascadekv/cascade"
	"cascadekv/internal/admin"
)

// redisVersion is the Redis whose behaviour clients may expect.
const redisVersion = "7.0.0"

// infoSections in the order in which INFO prints them.
var infoSections = []struct {
	name  string
	lines func(*conn, admin.Snapshot) []string
}{
	{"Server", infoServer},
	{"Clients", infoClients},
	{"Memory", infoMemory},
	{"Stats", infoStats},
	{"Replication", infoReplication},
	{"Keyspace", infoKeyspace},
	{"Cascade", infoCascade},
}

func cmdInfo(c *conn, args [][]byte) {
	want := map[string]bool{}
	for _, a := range args[1:] {
		want[strings.ToLower(string(a))] = true
	}
	all := len(want) == 0 || want["all"] || want["default"] || want["everything"]
	snap := c.srv.Snapshot()
	var b strings.Builder
	for _, s := range infoSections {
		if !all && !want[strings.ToLower(s.name)] {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		fmt.Fprintf(&b, "# %s\r\n%s\r\n", s.name, strings.Join(s.lines(c, snap), "\r\n"))
	}
	c.wr.Verbatim("txt", b.String())
}

func infoServer(c *conn, s admin.Snapshot) []string {
	return []string{
		"redis_version:" + redisVersion,
		"redis_mode:standalone",
		"cascade_version:" + s.Version,
		"os:" + runtime.GOOS + " " + runtime.GOARCH,
		fmt.Sprintf("process_id:%d", os.Getpid()),
		fmt.Sprintf("uptime_in_seconds:%d", int64(s.UptimeSeconds)),
		"unix_socket:" + c.srv.opt.Socket,
	}
}

func infoClients(c *conn, s admin.Snapshot) []string {
	return []string{
		fmt.Sprintf("connected_clients:%d", s.Connections),
		fmt.Sprintf("maxclients:%d", c.srv.limits.Load().MaxConnections),
	}
}

func infoMemory(_ *conn, s admin.Snapshot) []string {
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
	}
}

func infoStats(_ *conn, s admin.Snapshot) []string {
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

func infoReplication(*conn, admin.Snapshot) []string {
	return []string{"role:master", "connected_slaves:0"}
}

func infoCascade(c *conn, s admin.Snapshot) []string {
	return []string{
		"cascade_arena:" + arenaPath(c.srv.opt.Store),
		fmt.Sprintf("cascade_held_bytes:%d", s.Held.Bytes),
		fmt.Sprintf("cascade_held_views:%d", s.Held.Views),
		fmt.Sprintf("cascade_held_pins:%d", s.Held.Pins),
		fmt.Sprintf("cascade_held_stages:%d", s.Held.Stages),
		fmt.Sprintf("cascade_regions:%d", s.Held.Regions),
		fmt.Sprintf("cascade_jobs:%d", s.Held.Jobs),
		fmt.Sprintf("cascade_leases:%d", s.Leases),
	}
}

func infoKeyspace(_ *conn, s admin.Snapshot) []string {
	var lines []string
	for n := range databases {
		i := slices.IndexFunc(s.Namespaces, func(ns cascade.NamespaceStats) bool { return ns.Name == databaseNamespace(n) })
		if i >= 0 && s.Namespaces[i].Names > 0 {
			lines = append(lines, fmt.Sprintf("db%d:keys=%d,expires=0,avg_ttl=0", n, s.Namespaces[i].Names))
		}
	}
	return lines
}
