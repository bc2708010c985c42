package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/block"
)

// setOptions are SET's words after the value.
type setOptions struct {
	expires time.Time
	keep    bool
	when    cascade.Condition
}

// parseSet reads SET's options. The error is the text of the reply.
func parseSet(args [][]byte, now time.Time) (o setOptions, bad string) {
	for i := 0; i < len(args); i++ {
		switch word := strings.ToUpper(string(args[i])); word {
		case "NX", "XX":
			if o.when != cascade.Always {
				return o, "ERR syntax error"
			}
			o.when = cascade.IfAbsent
			if word == "XX" {
				o.when = cascade.IfPresent
			}
		case "KEEPTTL":
			o.keep = true
		case "EX", "PX", "EXAT", "PXAT":
			i++
			if i == len(args) || !o.expires.IsZero() {
				return o, "ERR syntax error"
			}
			if o.expires, bad = expiry(word, string(args[i]), now); bad != "" {
				return o, bad
			}
		default:
			return o, "ERR syntax error"
		}
	}
	if o.keep && !o.expires.IsZero() {
		return o, "ERR syntax error"
	}
	return o, ""
}

const maxSeconds = 1 << 33 // beyond the year 2200: what time.Time.Add can still take

// expiry reads the value of EX, PX, EXAT or PXAT.
func expiry(word, text string, now time.Time) (time.Time, string) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, "ERR value is not an integer or out of range"
	}
	unit := time.Second
	if word[0] == 'P' {
		unit = time.Millisecond
	}
	if n <= 0 || n > maxSeconds*int64(time.Second/unit) {
		return time.Time{}, "ERR invalid expire time in 'set' command"
	}
	if strings.HasSuffix(word, "AT") {
		return time.UnixMilli(n * int64(unit/time.Millisecond)), ""
	}
	return now.Add(time.Duration(n) * unit), ""
}

func cmdSet(c *conn, args [][]byte) {
	st, dropped := c.sink.take(), c.sink.err
	switch {
	case dropped != nil:
		c.notStored(dropped)
		return
	case st == nil:
		c.wr.Error("ERR syntax error")
		return
	}
	defer st.Abort()
	o, bad := parseSet(args[3:], time.Now())
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	key := string(args[1])
	e := cascade.Entry{Namespace: c.ns, Key: key, Expires: o.expires, KeepTTL: o.keep, When: o.when}
	if bytes, ok := pairOf(key); ok {
		e.Parent, e.Bound = bytes, true
	}
	size := int64(len(st.Bytes()))
	ctx, cancel := c.context()
	defer cancel()
	switch err := st.Commit(ctx, e); {
	case err == nil:
		c.fixed.knows(size)
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
	if c.fixed.is() {
		c.wr.ErrorExact("NO", len("+OK\r\n"))
		return
	}
	c.wr.Error(roomText(err))
}

func cmdGet(c *conn, args [][]byte) { c.get(c.ns, string(args[1])) }

func (c *conn) get(ns, key string) {
	v := c.view(ns, key, c.srv.opt.Store.GetUnverified)
	// A client that parses replies can be told of a bad block by the end of
	// the connection, so the checksum of a large one is computed on its way
	// out. Everybody else gets bytes that were checked before.
	if v != nil && v.Size() >= sendVerified && !c.fixed.is() {
		c.fixed.knows(v.Size())
		c.send(v, v.Verify)
		return
	}
	if v != nil && !v.Verify(block.CRC(v.Bytes())) {
		v.Release()
		v = c.view(ns, key, c.srv.opt.Store.Get) // from below, if it is there
	}
	if v == nil {
		c.miss()
		return
	}
	c.fixed.knows(v.Size())
	if v.Size() >= sendVerified {
		c.send(v, nil)
		return
	}
	c.reply(v)
}

// view gets a block and leases its name, or returns nil.
func (c *conn) view(ns, key string, get func(context.Context, string, string) (*cascade.View, error)) *cascade.View {
	ctx, cancel := c.context()
	defer cancel()
	v, err := get(ctx, ns, key)
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
	if bytes, ok := pairOf(key); ok {
		c.srv.opt.Store.Renew(ns, bytes, c.owner, d)
	}
	c.srv.opt.Store.Renew(ns, key, c.owner, d)
}

// lease promises a key that a client was told of; the bytes of a pair with it.
func (c *conn) lease(ctx context.Context, ns, key string) bool {
	d := c.srv.limits.Load().Lease
	if d <= 0 {
		return c.srv.opt.Store.Contains(ctx, ns, key)
	}
	if bytes, ok := pairOf(key); ok {
		c.srv.opt.Store.Lease(ctx, ns, bytes, c.owner, d)
	}
	return c.srv.opt.Store.Lease(ctx, ns, key, c.owner, d)
}

const (
	// An MGET is one request of the store as far as its values fit in
	// mgetBytes, of at most mgetMost keys: all of them are in memory at once.
	// Before the size of any is known it asks for mgetFirst.
	mgetBytes = 64 << 20
	mgetMost  = 1024
	mgetFirst = 32
)

func cmdMGet(c *conn, args [][]byte) {
	c.wr.Array(len(args) - 1)
	keys := make([]string, len(args)-1)
	for i, key := range args[1:] {
		keys[i] = string(key)
	}
	for n := mgetFirst; len(keys) > 0 && !c.quit; {
		part := keys[:min(n, len(keys))]
		keys = keys[len(part):]
		if largest := c.mget(part); largest > 0 {
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
	ctx, cancel := c.context()
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

func cmdExists(c *conn, args [][]byte) {
	ctx, cancel := c.context()
	defer cancel()
	n := int64(0)
	for _, key := range args[1:] {
		if c.lease(ctx, c.ns, string(key)) {
			n++
		}
	}
	c.wr.Int(n)
}

func cmdDel(c *conn, args [][]byte) {
	ctx, cancel := c.context()
	defer cancel()
	n := int64(0)
	for _, key := range args[1:] {
		if c.srv.opt.Store.Delete(ctx, c.ns, string(key)) {
			n++
		}
	}
	c.wr.Int(n)
}

func cmdStrlen(c *conn, args [][]byte) {
	ctx, cancel := c.context()
	defer cancel()
	info, _ := c.srv.opt.Store.Stat(ctx, c.ns, string(args[1]))
	c.wr.Int(info.Size)
}

func cmdType(c *conn, args [][]byte) {
	ctx, cancel := c.context()
	defer cancel()
	if c.srv.opt.Store.Contains(ctx, c.ns, string(args[1])) {
		c.wr.Simple("string")
		return
	}
	c.wr.Simple("none")
}

func cmdTTL(c *conn, args [][]byte) {
	c.ttl(args, time.Second)
}

func cmdPTTL(c *conn, args [][]byte) { c.ttl(args, time.Millisecond) }

func (c *conn) ttl(args [][]byte, unit time.Duration) {
	ctx, cancel := c.context()
	defer cancel()
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

func cmdExpire(c *conn, args [][]byte)  { c.expire(args, time.Second) }
func cmdPExpire(c *conn, args [][]byte) { c.expire(args, time.Millisecond) }

func (c *conn) expire(args [][]byte, unit time.Duration) {
	ctx, cancel := c.context()
	defer cancel()
	n, err := strconv.ParseInt(string(args[2]), 10, 64)
	switch key := string(args[1]); {
	case err != nil:
		c.wr.Error("ERR value is not an integer or out of range")
	case n > maxSeconds*int64(time.Second/unit):
		c.wr.Error(fmt.Sprintf("ERR invalid expire time in '%s' command", strings.ToLower(string(args[0]))))
	case n <= 0:
		c.intOf(c.srv.opt.Store.Delete(ctx, c.ns, key))
	default:
		c.intOf(c.srv.opt.Store.Expire(ctx, c.ns, key, time.Now().Add(time.Duration(n)*unit)))
	}
}

func (c *conn) intOf(b bool) {
	if b {
		c.wr.Int(1)
		return
	}
	c.wr.Int(0)
}
