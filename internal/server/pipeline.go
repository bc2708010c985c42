package server

import (
	"cascadekv/cascade"
)

// mostPipelined bounds the keys of one pipeline that are taken for one request.
const mostPipelined = 1 << 12

// pipeline is the keys, in order, of commands of one key each that came together.
type pipeline struct{ asked, stored []string }

// add adds the key of a command to one of the lists, unless it stands alone.
func (p *pipeline) add(keys *[]string, c *conn, key []byte) {
	if (len(*keys) > 0 || c.more()) && len(*keys) < mostPipelined {
		*keys = append(*keys, string(key))
	}
}

// end tells the store which keys came together.
func (p *pipeline) end(c *conn) {
	if len(p.asked) > 1 {
		cascade.Asked(c.srv.opt.Store, c.ns, p.asked)
	}
	if len(p.stored) > 1 {
		cascade.PutTogether(c.srv.opt.Store, c.ns, p.stored)
	}
	clear(p.asked)
	clear(p.stored)
	p.asked, p.stored = p.asked[:0], p.stored[:0]
}
