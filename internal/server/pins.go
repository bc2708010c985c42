package server

import (
	"context"

	"cascadekv/cascade"
	"cascadekv/internal/block"
)

// cmdCascadePin keeps blocks in memory. As with MGET, parts of the keys are one
// request of the store.
func cmdCascadePin(ctx context.Context, c *conn, words [][]byte) {
	ns, pinned := string(words[1]), int64(0)
	c.inParts(block.CopyKeys(words[2:]), func(keys []string) int64 {
		n, largest := c.pin(ctx, ns, keys)
		pinned += n
		return largest
	})
	c.wr.Int(pinned)
}

// pin pins some keys, as one request of the store, and returns how many are,
// and the size of the largest.
func (c *conn) pin(ctx context.Context, ns string, keys []string) (pinned, largest int64) {
	views, err := c.srv.opt.Store.GetBatch(ctx, ns, keys, cascade.Resident)
	if err != nil {
		views = make([]*cascade.View, len(keys)) // misses
	}
	for i, v := range views {
		if v != nil {
			largest = max(largest, v.Size())
		}
		if c.held.Pin(ns, keys[i], v) {
			pinned++
		}
	}
	return pinned, largest
}

func cmdCascadeUnpin(c *conn, args [][]byte) {
	ns := string(args[1])
	count(c, args[2:], func(key []byte) bool { return c.held.Unpin(ns, string(key)) })
}
