package server

import (
	"strconv"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/args"
)

// cmdCascadeStage gives room in the arena for blocks that the client fills.
func cmdCascadeStage(c *conn, words [][]byte) {
	sizes, ok := args.Numbers(words[1:])
	if !ok {
		c.wr.Error(args.Number)
		return
	}
	if _, ok := c.srv.opt.Store.Arena(); !ok {
		c.wr.Error(errNoArena)
		return
	}
	ctx, cancel := c.Context()
	defer cancel()
	c.wr.Array(len(sizes))
	for _, size := range sizes {
		if !c.held.Budget.Take(size) {
			c.wr.Null()
			continue
		}
		st, err := c.srv.opt.Store.Stage(ctx, size, cascade.InArena)
		if err != nil {
			c.held.Budget.GiveBack(size)
			c.wr.Null()
			continue
		}
		_, offset, _ := st.File()
		c.wr.Array(2)
		c.wr.Int(c.held.AddStage(st))
		c.wr.Int(offset)
	}
}

// cmdCascadeCommit publishes a stage as it is now, and ends it in any case.
func cmdCascadeCommit(c *conn, words [][]byte) {
	number, err := strconv.ParseInt(string(words[1]), 10, 64)
	if err != nil {
		c.wr.Error(args.Number)
		return
	}
	st := c.held.TakeStage(number)
	if st == nil {
		c.wr.Error("ERR no such stage on this connection")
		return
	}
	defer st.Abort()
	o := args.Commit{Entry: cascade.Entry{Namespace: string(words[2]), Key: string(words[3])}}
	if bad := o.Parse(words[4:], time.Now()); bad != "" {
		c.wr.Error(bad)
		return
	}
	if o.Summed {
		st.FilledAs(len(st.Bytes()), o.CRC)
	} else {
		st.Filled(len(st.Bytes()))
	}
	ctx, cancel := c.Context()
	defer cancel()
	if err := st.Commit(ctx, o.Entry); err != nil {
		c.wr.Error(roomText(err))
		return
	}
	c.wr.Simple("OK")
}

func cmdCascadeAbort(c *conn, args [][]byte) {
	c.eachNumber(args[1:], c.held.DropStage)
}
