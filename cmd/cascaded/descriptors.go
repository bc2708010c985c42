package main

import (
	"log/slog"

	"cascadekv/internal/config"
	"cascadekv/internal/descriptors"
)

// openFiles divides the files that this process may have open. With a nil log
// nothing is said of what the limit cuts.
func openFiles(c config.Config, log *slog.Logger) descriptors.Split {
	want := descriptors.Want(c.MaxConnections, c.Socket != "", c.Lustre.Dir != "", c.Peers.Fabric != "off")
	limit, err := descriptors.Limit()
	if err != nil { // no kernel refuses it
		limit = descriptors.Needed(want)
	}
	s := descriptors.Divide(limit, want)
	if log != nil && s.Connections < c.MaxConnections {
		log.Warn("the limit of open files cuts max_connections: raise the hard limit (ulimit -Hn, LimitNOFILE= in a unit), or lower max_connections",
			"limit", limit, "needed", descriptors.Needed(want), "max_connections", c.MaxConnections, "clients", s.Connections,
			"segments", s.Files, "peers", s.Peers, "shared_memory", s.Shared)
	}
	return s
}
