package server

import (
	"context"
	"strconv"
	"strings"
	"time"

	"cascadekv/internal/region"
	"cascadekv/internal/transfer"
)

// parseTransfer reads what follows the extents of a STORE or LOAD. o.Job is -1 for
// none; bad is the text of the reply.
func parseTransfer(args [][]byte, store bool, now time.Time) (o transfer.Options, keys [][]byte, bad string) {
	o.Job = -1
	for i := 0; i < len(args); i++ {
		word := strings.ToUpper(string(args[i]))
		switch {
		case word == "KEYS" && i+1 < len(args):
			return o, args[i+1:], ""
		case word == "CHAIN" && store:
			o.Chain = true
			continue
		case word == "PREFIX" && store:
			o.Prefix = true
			continue
		case word == "REPLACE" && store:
			o.Replace = true
			continue
		}
		i++
		if i == len(args) {
			break
		}
		switch value := string(args[i]); {
		case word == "JOB":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return o, nil, "ERR a job is a number from 0 on"
			}
			o.Job = n
		case word == "PARENT" && store:
			o.Parent = value
		case word == "PX" && store:
			if o.Expires, bad = expiry("PX", value, now); bad != "" {
				return o, nil, bad
			}
		default:
			return o, nil, "ERR syntax error"
		}
	}
	return o, nil, "ERR syntax error"
}

func cmdCascadeStore(c *conn, args [][]byte) { c.transfer(args, true) }
func cmdCascadeLoad(c *conn, args [][]byte)  { c.transfer(args, false) }

// transfer serves STORE and LOAD: at once, or as a job.
func (c *conn) transfer(args [][]byte, store bool) {
	_, at := c.region(args[1])
	if at == nil {
		return
	}
	o, keys, bad := parseTransfer(args[4:], store, time.Now())
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	layout, err := region.ParseLayout(args[3], len(keys), at.Size())
	if err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	t, err := c.srv.jobs.New(at, string(args[2]), names, layout, o, store)
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
	c.wr.Bulk(t.Run(ctx))
}
