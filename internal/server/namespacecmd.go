package server

// cmdCascadeDel is DEL in a namespace of the store.
func cmdCascadeDel(c *conn, args [][]byte) {
	ctx, cancel := c.context()
	defer cancel()
	n := int64(0)
	for _, key := range args[2:] {
		if c.srv.opt.Store.Delete(ctx, string(args[1]), string(key)) {
			n++
		}
	}
	c.wr.Int(n)
}

// cmdCascadeClear is FLUSHDB of a namespace of the store.
func cmdCascadeClear(c *conn, args [][]byte) {
	ctx, cancel := c.context()
	defer cancel()
	c.srv.opt.Store.Clear(ctx, string(args[1]), false)
	c.wr.Simple("OK")
}
