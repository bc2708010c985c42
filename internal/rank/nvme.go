package rank

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"cascadekv/gpu/direct"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/config"
)

// nvmeTimeout bounds how long a start waits for disks of the node: for the first container of a pool that is made.
const nvmeTimeout = 30 * time.Second

// ringTimeout bounds how long a client that asks for a ring waits for the disks.
const ringTimeout = 5 * time.Second

// openNVMe opens the tier on local disks. What the pool still lacks is made beside the rank's work.
func openNVMe(c config.NVMe, log *slog.Logger) (*nvme.Tier, error) {
	ctx, cancel := context.WithTimeout(context.Background(), nvmeTimeout)
	defer cancel()
	t, err := nvme.Open(ctx, nvme.Options{Dirs: c.Paths, Bytes: int64(c.Bytes), FileBytes: int64(c.FileBytes), Direct: true})
	if err != nil {
		return nil, fmt.Errorf("nvme.paths = %q: %w", c.Paths, err)
	}
	u := t.Usage()
	log.Info("nvme", "paths", c.Paths, "ready_bytes", u.Capacity, "missing_bytes", u.Missing, "blocks", u.Blocks, "memory_bytes", t.Untouched())
	return t, nil
}

// watchNVMe says when all of the pool is there, or why it stays smaller.
func watchNVMe(ctx context.Context, t *nvme.Tier, log *slog.Logger) {
	if t.Usage().Missing == 0 {
		return
	}
	err := t.WaitGrown(ctx)
	if ctx.Err() != nil {
		return
	}
	u := t.Usage()
	if err != nil {
		log.Warn("the nvme tier is smaller than nvme.bytes: make room on the disks and restart the rank", "bytes", u.Capacity, "missing_bytes", u.Missing, "err", err)
		return
	}
	log.Info("the nvme tier is ready", "bytes", u.Capacity)
}

// rings returns what makes rings over the disks, nil where there are none.
func (l *levels) rings() func(bytes int64, write bool) (*direct.Ring, error) {
	disks := l.nvme
	if disks == nil {
		return nil
	}
	return func(bytes int64, write bool) (*direct.Ring, error) {
		ctx, cancel := context.WithTimeout(context.Background(), ringTimeout)
		defer cancel()
		return direct.Over(ctx, disks, write, direct.Options{Bytes: bytes})
	}
}
