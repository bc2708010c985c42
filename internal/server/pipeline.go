package server

import "cascadekv/cascade"

// mostPipelined bounds the keys of one pipeline that are taken for one request.
const mostPipelined = 1 << 12

// pipelined adds the key of a command to those of its pipeline, unless it stands alone.
func (c *conn) pipelined(keys *[]string, key string) {
	if len(*keys) == 0 && c.rd.Buffered() == 0 || len(*keys) == mostPipelined {
		return
	}
	*keys = append(*keys, key)
}

// pipelineEnds tells the store which keys came together.
func (c *conn) pipelineEnds() {
	if len(c.asked) > 1 {
		cascade.Asked(c.srv.opt.Store, c.ns, c.asked)
	}
	if len(c.stored) > 1 {
		cascade.PutTogether(c.srv.opt.Store, c.ns, c.stored)
	}
	clear(c.asked)
	clear(c.stored)
	c.asked, c.stored = c.asked[:0], c.stored[:0]
}
