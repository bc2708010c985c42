package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/args"
	"cascadekv/internal/block"
	"cascadekv/internal/lmcache"
)

func cmdSet(c *conn, words [][]byte) {
	st, dropped := c.sink.take(), c.sink.err
	switch {
	case dropped != nil:
		cascade.Refused(c.srv.opt.Store, c.ns, string(words[1]), dropped)
		c.notStored(dropped)
		return
	case st == nil:
		c.wr.Error(args.Syntax)
		return
	}
	defer st.Abort()
	e, bad := c.entry(words)
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	c.together.Stored(words[1], c.more())
	size := int64(len(st.Bytes()))
	ctx, cancel := c.Context()
	defer cancel()
	c.stored(size, st.Commit(ctx, e))
}

// entry is what a SET names.
func (c *conn) entry(words [][]byte) (e cascade.Entry, bad string) {
	o, bad := args.ParseSet(words[3:], time.Now())
	e = cascade.Entry{Namespace: c.ns, Key: string(words[1]), Expires: o.Expires, KeepTTL: o.Keep, When: o.When}
	if bytes, ok := lmcache.PairOf(e.Key); ok {
		e.Parent, e.Bound = bytes, true
	}
	return e, bad
}

// stored answers a SET of so many bytes that ended with err.
func (c *conn) stored(size int64, err error) {
	switch {
	case err == nil:
		c.fixed.Size = size
		c.wr.Simple("OK")
	case errors.Is(err, cascade.ErrCondition):
		c.wr.Null()
	default:
		c.notStored(err)
	}
}

// notStored answers a SET whose value was dropped.
func (c *conn) notStored(err error) {
	c.srv.counters.dropped.Add(1)
	if c.fixed.Fixed() {
		c.wr.ErrorExact("NO", len("+OK\r\n"))
		return
	}
	c.wr.Error(roomText(err))
}

func cmdGet(c *conn, args [][]byte) { c.get(c.ns, string(args[1])) }

func (c *conn) get(ns, key string) {
	v := c.view(ns, key, cascade.Unverified)
	// A client that parses replies learns of a bad block by the end of
	// the connection, so the checksum of a large one is computed on its way
	// out. Everybody else gets bytes that were checked before.
	if v != nil && v.Size() >= sendVerified && !c.fixed.Fixed() {
		c.fixed.Size = v.Size()
		c.send(v, v.Verify)
		return
	}
	if v != nil && !v.Verify(block.CRC(v.Bytes())) {
		v.Release()
		v = c.view(ns, key, cascade.Uncounted) // from below, if it is there
	}
	if v == nil {
		c.miss()
		return
	}
	c.fixed.Size = v.Size()
	if v.Size() >= sendVerified {
		c.send(v, nil)
		return
	}
	c.reply(v)
}

// view gets a block and leases its name, or returns nil.
func (c *conn) view(ns, key string, how ...cascade.GetOption) *cascade.View {
	ctx, cancel := c.Context()
	defer cancel()
	v, err := c.srv.opt.Store.Get(ctx, ns, key, how...)
	if err != nil {
		return nil
	}
	c.renew(ns, key)
	return v
}

// reply appends a view's bytes, borrowed until the next flush.
func (c *conn) reply(v *cascade.View) {
	c.wr.BulkRef(v.Bytes())
	c.views = append(c.views, v)
}

// renew promises a key that was served, as far as it is on this rank; the bytes
// of a pair with it.
func (c *conn) renew(ns, key string) {
	d := c.srv.limits.Load().Lease
	if bytes, ok := lmcache.PairOf(key); ok {
		c.srv.opt.Store.Leases().Renew(ns, bytes, c.owner, d)
	}
	c.srv.opt.Store.Leases().Renew(ns, key, c.owner, d)
}

// lease promises a key that a client asked for; the bytes of a pair with it.
func (c *conn) lease(ctx context.Context, ns, key string) bool {
	d := c.srv.limits.Load().Lease
	if d <= 0 {
		return c.srv.opt.Store.Contains(ctx, ns, key)
	}
	if bytes, ok := lmcache.PairOf(key); ok {
		c.srv.opt.Store.Lease(ctx, ns, bytes, c.owner, d)
	}
	return c.srv.opt.Store.Lease(ctx, ns, key, c.owner, d)
}

// count answers with how many of some things is is true of.
func count[T any](c *conn, things []T, is func(T) bool) {
	n := int64(0)
	for _, x := range things {
		if is(x) {
			n++
		}
	}
	c.wr.Int(n)
}

const (
	// An MGET is one request of the store as far as its values fit in
	// mgetBytes, of at most mgetMost keys: all of them are in memory at once.
	// Before the size of any is known it asks for mgetFirst.
	mgetBytes = 64 << 20
	mgetMost  = 1024
	mgetFirst = 64
)

func cmdMGet(c *conn, args [][]byte) {
	c.wr.Array(len(args) - 1)
	keys := make([]string, len(args)-1)
	for i, key := range args[1:] {
		keys[i] = string(key)
	}
	c.inParts(keys, c.mget)
	cascade.Asked(c.srv.opt.Store, c.ns, keys)
}

// inParts calls get for parts of some keys, each one request of the store, until the
// connection ends. get returns the size of the largest value, 0 for none.
func (c *conn) inParts(keys []string, get func(keys []string) (largest int64)) {
	for n := mgetFirst; len(keys) > 0 && !c.quit; {
		part := keys[:min(n, len(keys))]
		keys = keys[len(part):]
		if largest := get(part); largest > 0 {
			n = partOf(largest)
		}
	}
}

// partOf is how many values, the largest of which has so many bytes, are one
// request of the store.
func partOf(largest int64) int { return int(min(max(mgetBytes/largest, 1), mgetMost)) }

// mget replies with the values of some keys, as one request of the store, and
// returns the size of the largest.
func (c *conn) mget(keys []string) (largest int64) {
	ctx, cancel := c.Context()
	defer cancel()
	views, err := c.srv.opt.Store.GetBatch(ctx, c.ns, keys)
	if err != nil {
		views = make([]*cascade.View, len(keys)) // misses
	}
	for i, v := range views {
		switch {
		case v == nil:
			c.wr.Null()
			continue
		case c.quit:
			v.Release()
			continue
		}
		largest = max(largest, v.Size())
		c.renew(c.ns, keys[i])
		c.reply(v)
		// Parts of an array may go out early: what they borrow is not held
		// until the last is there.
		if c.wr.Pending() >= flushAt && c.flush() != nil {
			c.quit = true
		}
	}
	return largest
}

func cmdExists(ctx context.Context, c *conn, args [][]byte) {
	if len(args) > 2 {
		cascade.Asked(c.srv.opt.Store, c.ns, args[1:])
	}
	count(c, args[1:], func(key []byte) bool { return c.lease(ctx, c.ns, string(key)) })
}

func cmdDel(ctx context.Context, c *conn, args [][]byte) {
	count(c, args[1:], func(key []byte) bool { return c.srv.opt.Store.Delete(ctx, c.ns, string(key)) })
}

func cmdStrlen(ctx context.Context, c *conn, args [][]byte) {
	info, _ := c.srv.opt.Store.Stat(ctx, c.ns, string(args[1]))
	c.wr.Int(info.Size)
}

func cmdType(ctx context.Context, c *conn, args [][]byte) {
	if c.srv.opt.Store.Contains(ctx, c.ns, string(args[1])) {
		c.wr.Simple("string")
		return
	}
	c.wr.Simple("none")
}

// ttl makes the command that answers with what a key has left to live, in units.
func ttl(unit time.Duration) func(c *conn, args [][]byte) {
	return bounded(func(ctx context.Context, c *conn, args [][]byte) { c.ttl(ctx, args, unit) })
}

func (c *conn) ttl(ctx context.Context, args [][]byte, unit time.Duration) {
	info, ok := c.srv.opt.Store.Stat(ctx, c.ns, string(args[1]))
	switch {
	case !ok:
		c.wr.Int(-2)
	case info.Expires.IsZero():
		c.wr.Int(-1)
	default:
		left := time.Until(info.Expires)
		c.wr.Int(int64((left + unit/2) / unit))
	}
}

// expire makes the command that has a key end after so many units.
func expire(unit time.Duration) func(c *conn, words [][]byte) {
	return bounded(func(ctx context.Context, c *conn, words [][]byte) { c.expire(ctx, words, unit) })
}

func (c *conn) expire(ctx context.Context, words [][]byte, unit time.Duration) {
	n, err := strconv.ParseInt(string(words[2]), 10, 64)
	switch key := string(words[1]); {
	case err != nil:
		c.wr.Error(args.Number)
	case n > args.MaxSeconds*int64(time.Second/unit):
		c.wr.Error(fmt.Sprintf("ERR invalid expire time in '%s' command", strings.ToLower(string(words[0]))))
	case n <= 0:
		c.wr.Bit(c.srv.opt.Store.Delete(ctx, c.ns, key))
	default:
		c.wr.Bit(c.srv.opt.Store.Expire(ctx, c.ns, key, time.Now().Add(time.Duration(n)*unit)))
	}
}
