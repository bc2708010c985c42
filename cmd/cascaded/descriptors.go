package main

import (
	"log/slog"

	"cascadekv/internal/config"
	"cascadekv/internal/descriptors"
)

// openFiles divides the files that this process may have open. With a nil log
// nothing is said of what the limit cuts.
func openFiles(c config.Config, log *slog.Logger) descriptors.Split {
	limit, err := descriptors.Limit()
	if err != nil { // no kernel refuses it
		limit = descriptors.Needed(c.Descriptors())
	}
	s := descriptors.Divide(limit, c.Descriptors())
	if log != nil && s.Connections < c.MaxConnections {
		log.Warn("the limit of open files cuts max_connections: raise the hard limit (ulimit -Hn, LimitNOFILE= in a unit), or lower max_connections",
			"limit", limit, "needed", descriptors.Needed(c.Descriptors()), "max_connections", c.MaxConnections, "clients", s.Connections,
			"segments", s.Files, "peers", s.Peers, "shared_memory", s.Shared)
	}
	return s
}
