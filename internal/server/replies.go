package server

import (
	"encoding/json"

	"cascadekv/internal/resp"
)

// replies collects the replies of a connection.
type replies struct{ resp.Writer }

func (r *replies) text(key, value string) {
	r.BulkString(key)
	r.BulkString(value)
}

func (r *replies) number(key string, value int64) {
	r.BulkString(key)
	r.Int(value)
}

func (r *replies) json(v any) {
	p, err := json.Marshal(v)
	if err != nil {
		r.Error("ERR " + err.Error())
		return
	}
	r.Bulk(p)
}

func (r *replies) intOf(b bool) {
	if b {
		r.Int(1)
		return
	}
	r.Int(0)
}

func (r *replies) nulls(n int) {
	for range n {
		r.Null()
	}
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
