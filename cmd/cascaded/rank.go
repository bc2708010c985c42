package main

import (
	"context"
	"errors"
	"log/slog"

	"cascadekv/internal/config"
)

// openRank puts a rank together: tiers, store, server.
func openRank(context.Context, config.Config, string, *slog.Logger) (rank, error) {
	return nil, errors.New("this build has no server")
}
