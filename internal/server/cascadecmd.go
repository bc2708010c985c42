package server

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/answers"
	"cascadekv/internal/args"
	"cascadekv/internal/block"
	"cascadekv/internal/resp"
)

const maxBulk = resp.MaxBulk

func cmdCascadePut(c *conn, words [][]byte) {
	st, dropped := c.sink.take(), c.sink.err
	switch {
	case dropped != nil:
		if e, bad := args.ParsePut(words, c.ns, time.Now()); bad == "" {
			cascade.Refused(c.srv.opt.Store, e.Namespace, e.Key, dropped)
		}
		c.srv.counters.dropped.Add(1)
		c.wr.Error(roomText(dropped))
		return
	case st == nil:
		c.wr.Error(args.Syntax)
		return
	}
	defer st.Abort()
	put(c, words, st.CommitContent)
}

// cmdCascadeAlias is CASCADE.PUT of bytes that are stored already, with their id instead.
func cmdCascadeAlias(c *conn, words [][]byte) {
	put(c, words, func(ctx context.Context, e cascade.Entry) (cascade.PutResult, error) {
		return cascade.PutByID(ctx, c.srv.opt.Store, e, string(words[2]))
	})
}

// put does a put of the entry that words describe, and answers with the id.
func put(c *conn, words [][]byte, do func(context.Context, cascade.Entry) (cascade.PutResult, error)) {
	e, bad := args.ParsePut(words, c.ns, time.Now())
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	ctx, cancel := c.Context()
	defer cancel()
	switch res, err := do(ctx, e); {
	case errors.Is(err, cascade.ErrMiss):
		c.wr.Null()
	case err != nil:
		c.wr.Error(roomText(err))
	default:
		c.wr.BulkString(res.ID.String())
	}
}

func cmdCascadeGet(c *conn, words [][]byte) {
	ns, key := c.ns, string(words[len(words)-1])
	switch {
	case len(words) == 4 && strings.EqualFold(string(words[1]), "NS"):
		ns = string(words[2])
	case len(words) != 2:
		c.wr.Error(args.Syntax)
		return
	}
	if v := c.view(ns, key); v != nil {
		c.reply(v)
		return
	}
	c.wr.Null()
}

func cmdCascadeProbe(ctx context.Context, c *conn, words [][]byte) {
	defer untold(c, len(words)-2, time.Now())
	p := c.srv.opt.Store.Probe(ctx, string(words[1]), block.CopyKeys(words[2:]))
	cascade.Asked(c.srv.opt.Store, string(words[1]), words[2:])
	answers.Probe(&c.wr, &p)
}

// cmdCascadeAdvise answers how much of a chain to load for a client that can also compute it.
func cmdCascadeAdvise(ctx context.Context, c *conn, words [][]byte) {
	ask, byWords, keys, bad := args.ParseAdvise(words[2:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	defer untold(c, len(keys), time.Now())
	a := cascade.Advise(ctx, c.srv.opt.Store, string(words[1]), block.CopyKeys(keys), ask)
	cascade.Asked(c.srv.opt.Store, string(words[1]), keys)
	answers.Advice(&c.wr, &a, byWords)
}

func cmdCascadeHint(ctx context.Context, c *conn, words [][]byte) {
	h, keys, bad := args.ParseHint(words[2:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	c.wr.Int(int64(cascade.Declare(ctx, c.srv.opt.Store, string(words[1]), block.CopyKeys(keys), h)))
}

func cmdCascadeStat(ctx context.Context, c *conn, args [][]byte) {
	info, ok := c.srv.opt.Store.Stat(ctx, string(args[1]), string(args[2]))
	if !ok {
		c.wr.Null()
		return
	}
	ns := string(args[1])
	refs := cascade.Refs(ctx, c.srv.opt.Store, ns, string(args[2]), info)
	answers.Stat(&c.wr, &info, refs, c.srv.opt.Store.Layouts().Of(ns))
}

// cmdCascadeLayout returns the layout of a namespace, or sets it.
func cmdCascadeLayout(c *conn, words [][]byte) {
	book, ns := c.srv.opt.Store.Layouts(), string(words[1])
	if len(words) == 2 {
		answers.Layout(&c.wr, book.Of(ns))
		return
	}
	l, bad := args.ParseLayout(words[2:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	err := cascade.CheckNamespace(ns)
	if err == nil {
		err = book.Set(ns, l)
	}
	if err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	c.wr.Simple("OK")
}

func cmdCascadeStats(c *conn, _ [][]byte) { c.wr.JSON(c.srv.Snapshot()) }

const errAlone = "ERR this rank is alone: peers.fabric is off in its configuration"

// cmdCascadeRanks describes every rank of the job.
func cmdCascadeRanks(ctx context.Context, c *conn, _ [][]byte) {
	if c.srv.opt.Node == nil {
		c.wr.Error(errAlone)
		return
	}
	c.wr.JSON(c.srv.opt.Node.Ranks(ctx))
}

// cmdCascadeRing reports where a key lives and why, and which ranks have it.
func cmdCascadeRing(ctx context.Context, c *conn, args [][]byte) {
	if c.srv.opt.Node == nil {
		c.wr.Error(errAlone)
		return
	}
	ns, key := string(args[1]), string(args[2])
	info, here := c.srv.opt.Store.Stat(ctx, ns, key)
	k := dht.KeyPlace{Explanation: c.srv.opt.Node.Explain(ns, key), Rank: c.srv.opt.Node.Self(), Stored: here}
	if here {
		k.ID, k.Tiers = info.ID.String(), info.Tiers
	}
	if block.IsName(ns, key) {
		for _, st := range c.srv.opt.Node.Locate(ctx, ns, []string{key})[0] {
			k.Copies = append(k.Copies, dht.KeyCopy{Rank: st.Owner, Memory: st.Memory != nil, Segment: st.Segment != nil})
		}
	}
	c.wr.JSON(k)
}

// cmdCascadeWhy reports where a block is, what keeps it there, and why its name was lost last.
func cmdCascadeWhy(ctx context.Context, c *conn, args [][]byte) {
	c.wr.JSON(cascade.Explain(ctx, c.srv.opt.Store, string(args[1]), string(args[2])))
}

// drainDeadline bounds CASCADE.DRAIN.
const drainDeadline = 10 * time.Minute

func cmdCascadeDrain(c *conn, _ [][]byte) {
	ctx, cancel := context.WithTimeout(context.Background(), drainDeadline)
	defer cancel()
	n, err := c.srv.opt.Store.Drain(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		c.wr.Error("ERR drained " + strconv.Itoa(n) + " blocks, then: " + err.Error())
		return
	}
	c.wr.Int(int64(n))
}

// cmdCascadeDel is DEL in a namespace of the store.
func cmdCascadeDel(ctx context.Context, c *conn, args [][]byte) {
	count(c, args[2:], func(key []byte) bool { return c.srv.opt.Store.Delete(ctx, string(args[1]), string(key)) })
}

// cmdCascadeScan is SCAN in a namespace of the store.
func cmdCascadeScan(c *conn, args [][]byte) { c.scan(string(args[1]), args[2:]) }

// cmdCascadeClear is FLUSHDB of a namespace of the store.
func cmdCascadeClear(ctx context.Context, c *conn, args [][]byte) {
	ns := string(args[1])
	if err := cascade.CheckNamespace(ns); err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	c.srv.opt.Store.Clear(ctx, ns, false)
	c.wr.Simple("OK")
}
