package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"cascadekv/internal/config"
	"cascadekv/internal/preflight"
)

// errNode ends a start on a node where a rank of this configuration cannot live.
var errNode = errors.New("a rank cannot run here as configured")

// checkNode logs what the node lacks for the configuration. What a rank can do
// with less of is no error: its tiers grow into what there is (see memory.Tier).
// The error matches errNode.
func checkNode(c config.Config, log *slog.Logger) error {
	var refused []error
	for _, found := range preflight.Here(os.Environ()).Start(&c) {
		log := log.With("check", found.Name, "remedy", found.Remedy)
		switch {
		case found.NoStart:
			refused = append(refused, fmt.Errorf("%w: %s: %s; %s", errNode, found.Name, found.Detail, found.Remedy))
		case found.Verdict == preflight.Fail:
			log.Error("the rank starts with less than is configured: " + found.Detail)
		case found.Verdict == preflight.Warn:
			log.Warn(found.Detail)
		}
	}
	return errors.Join(refused...)
}
