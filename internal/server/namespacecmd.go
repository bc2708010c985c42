package server

import "context"

// cmdCascadeDel is DEL in a namespace of the store.
func cmdCascadeDel(ctx context.Context, c *conn, args [][]byte) {
	count(c, args[2:], func(key []byte) bool { return c.srv.opt.Store.Delete(ctx, string(args[1]), string(key)) })
}

// cmdCascadeScan is SCAN in a namespace of the store.
func cmdCascadeScan(c *conn, args [][]byte) { c.scan(string(args[1]), args[2:]) }

// cmdCascadeClear is FLUSHDB of a namespace of the store.
func cmdCascadeClear(ctx context.Context, c *conn, args [][]byte) {
	c.srv.opt.Store.Clear(ctx, string(args[1]), false)
	c.wr.Simple("OK")
}
