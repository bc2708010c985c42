package server

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/internal/args"
	"cascadekv/internal/block"
)

const (
	// errNoArena is for clients of a rank whose memory is in no file.
	errNoArena = "ERR this rank's memory is not in a file that clients can map; configure shm.bytes"
)

// cmdCascadeArena hands the arena file over, for reading only.
func cmdCascadeArena(c *conn, _ [][]byte) {
	a, ok := c.srv.opt.Store.Arena()
	if !ok {
		c.wr.Error(errNoArena)
		return
	}
	// Opened anew, so that the right to write does not go with it.
	fd, err := unix.Open(fdPath(a.FD), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		c.wr.Error("ERR the arena can not be opened for reading: " + err.Error())
		return
	}
	defer func() { _ = unix.Close(fd) }() // only the client's copy matters
	c.replyFile(fd, a.Size)
}

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// arenaPath is the arena's path in the file system, "" when there is none.
func arenaPath(st *cascade.Store) string {
	a, ok := st.Arena()
	if !ok {
		return ""
	}
	path, err := os.Readlink(fdPath(a.FD))
	if err != nil {
		return ""
	}
	return path
}

// cmdCascadeGetShm answers where blocks lie in the arena, and holds them there.
// As with MGET, parts of the keys are one request of the store.
func cmdCascadeGetShm(c *conn, words [][]byte) {
	if _, ok := c.srv.opt.Store.Arena(); !ok {
		c.wr.Error(errNoArena)
		return
	}
	ctx, cancel := c.Context()
	defer cancel()
	ns, keys := string(words[1]), block.CopyKeys(words[2:])
	c.wr.Array(len(keys))
	room := true
	c.inParts(keys, func(part []string) (largest int64) {
		if !room {
			c.wr.Nulls(len(part))
			return 0
		}
		largest, room = c.getShm(ctx, ns, part)
		if c.wr.Pending() >= flushAt && c.flush() != nil {
			c.quit = true
		}
		return largest
	})
}

// getShm replies with views of some keys, as one request of the store, and
// returns the size of the largest, and false when there is room for no more.
func (c *conn) getShm(ctx context.Context, ns string, keys []string) (largest int64, room bool) {
	views, err := c.srv.opt.Store.GetBatch(ctx, ns, keys)
	if err != nil {
		c.wr.Nulls(len(keys))
		return 0, false
	}
	room = true
	for i, v := range views {
		if v == nil {
			c.wr.Null()
			continue
		}
		largest = max(largest, v.Size())
		if !c.held.Budget.Take(v.Size()) {
			room = false
			v.Release()
			c.wr.Null()
			continue
		}
		size := v.Size()
		if v, err = c.srv.opt.Store.Share(ctx, v); err != nil {
			c.held.Budget.GiveBack(size)
			c.wr.Null()
			continue
		}
		c.renew(ns, keys[i])
		c.replyView(c.held.AddView(v), v)
	}
	return largest, room
}

func (c *conn) replyView(number int64, v *cascade.View) {
	_, offset, _ := v.File()
	c.wr.Array(5)
	c.wr.Int(number)
	c.wr.Int(offset)
	c.wr.Int(v.Size())
	c.wr.Int(int64(v.CRC()))
	c.wr.BulkString(v.Tier())
}

func cmdCascadeRelease(c *conn, args [][]byte) {
	c.eachNumber(args[1:], c.held.DropView)
}

// eachNumber replies for how many of some numbers do is true; it is called for
// none of them when one is not a number.
func (c *conn) eachNumber(words [][]byte, do func(int64) bool) {
	numbers, ok := args.Numbers(words)
	if !ok {
		c.wr.Error(args.Number)
		return
	}
	count(c, numbers, do)
}

// cmdCascadeContains answers one byte for each key.
func cmdCascadeContains(ctx context.Context, c *conn, args [][]byte) {
	defer untold(c, len(args)-2, time.Now())
	contained(c, c.srv.opt.Store.ContainsBatch(ctx, string(args[1]), args[2:]))
	cascade.Asked(c.srv.opt.Store, string(args[1]), args[2:])
}

// contained answers CASCADE.CONTAINS.
func contained(c *conn, found []bool) {
	bits := make([]byte, len(found))
	for i, yes := range found {
		if yes {
			bits[i] = 1
		}
	}
	c.wr.Bulk(bits)
}
