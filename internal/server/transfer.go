package server

import (
	"context"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/args"
	"cascadekv/internal/inject"
	"cascadekv/internal/region"
	"cascadekv/internal/transfer"
)

func cmdCascadeStore(c *conn, words [][]byte) { c.transfer(words, true) }
func cmdCascadeLoad(c *conn, words [][]byte)  { c.transfer(words, false) }

// transfer serves STORE and LOAD: at once, or as a job.
func (c *conn) transfer(words [][]byte, store bool) {
	_, at := c.region(words[1])
	if at == nil {
		return
	}
	o, keys, bad := args.ParseTransfer(words[4:], store, time.Now())
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	layout, err := region.ParseLayout(words[3], len(keys), at.Size())
	if err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	switch {
	case !store:
		cascade.Asked(c.srv.opt.Store, string(words[2]), names)
	case !o.Chain && o.Parent == "":
		cascade.PutTogether(c.srv.opt.Store, string(words[2]), names)
	}
	t, err := c.srv.jobs.New(at, string(words[2]), names, layout, o, store)
	switch {
	case err != nil:
		c.wr.Error("ERR " + err.Error())
	case o.Job < 0:
		c.runNow(t)
	default:
		if bad := c.transfers.Submit(t, at); bad != "" {
			c.wr.Error(bad)
			return
		}
		c.wr.Simple("QUEUED")
	}
}

// runNow makes a transfer, as far as the client waits for it, and replies.
func (c *conn) runNow(t *transfer.Transfer) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer c.sock.OnHangUp(cancel)()
	if c.sock.HungUp() {
		cancel() // before anything is done, and not soon after
	}
	status := t.Run(ctx)
	lost := inject.Lost(inject.Completion)
	t.Account(lost || ctx.Err() != nil)
	if lost {
		c.quit = true
		return
	}
	c.wr.Bulk(status)
}
