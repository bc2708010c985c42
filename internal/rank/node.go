package rank

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"cascadekv/internal/config"
	"cascadekv/internal/descriptors"
	"cascadekv/internal/preflight"
)

// errNode ends a start on a node where a rank of this configuration cannot live.
var errNode = errors.New("a rank cannot run here as configured")

// checkNode logs what the node lacks for the configuration. What a rank can do
// with less of is no error: its tiers grow into what there is (see memory.Tier).
// The error matches errNode.
func checkNode(c config.Config, log *slog.Logger) error {
	var refused []error
	checks := preflight.Here(os.Environ()).Start(&c)
	for _, found := range checks {
		if found.NoStart {
			refused = append(refused, fmt.Errorf("%w: %s: %s; %s", errNode, found.Name, found.Detail, found.Remedy))
		}
	}
	if len(refused) > 0 {
		return errors.Join(refused...)
	}
	for _, found := range checks {
		log := log.With("check", found.Name, "remedy", found.Remedy)
		switch {
		case found.Verdict == preflight.Fail:
			log.Error("the rank starts with less than is configured: " + found.Detail)
		case found.Verdict == preflight.Warn:
			log.Warn(found.Detail)
		}
	}
	return nil
}

// openFiles divides the files that this process may have open. With a log it warns
// of what the limit cuts.
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
