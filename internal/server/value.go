package server

import (
	"errors"
	"strings"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
)

// valueSink routes the value of a SET from the socket into tier memory. It
// holds at most one stage at a time.
type valueSink struct {
	conn   *conn
	stage  *cascade.Stage
	filled int64
	err    error // why the value was dropped

	checksum func() // of what the stage has: made once
}

func (v *valueSink) init(c *conn) {
	v.conn = c
	v.checksum = func() { v.stage.Sum() }
}

// Bulk implements resp.Sink: SET's and CASCADE.PUT's value is argument 2.
func (v *valueSink) Bulk(args [][]byte, size int64) (resp.Receiver, error) {
	if len(args) != 2 || !v.conn.authed || !takesValue(args[0]) {
		return nil, nil
	}
	v.abort()
	ctx, cancel := v.conn.context()
	defer cancel()
	st, err := v.conn.srv.opt.Store.Stage(ctx, size)
	if err != nil {
		return nil, err
	}
	v.stage = st
	v.conn.wire.meanwhile = v.checksum
	return v, nil
}

func takesValue(name []byte) bool {
	return len(name) == 3 && strings.EqualFold(string(name), "SET") ||
		len(name) == 11 && strings.EqualFold(string(name), "CASCADE.PUT")
}

// Next implements resp.Receiver.
func (v *valueSink) Next() []byte { return v.stage.Bytes()[v.filled:] }

// Filled implements resp.Receiver.
func (v *valueSink) Filled(n int) {
	v.stage.Filled(n)
	v.filled += int64(n)
}

// take hands the stage over to its command.
func (v *valueSink) take() *cascade.Stage {
	st := v.stage
	v.stage, v.filled = nil, 0
	v.conn.wire.meanwhile = nil
	return st
}

// abort gives back a stage that no command took.
func (v *valueSink) abort() {
	if st := v.take(); st != nil {
		st.Abort()
	}
}

// roomText is what a client is told when a value was not stored.
func roomText(err error) string {
	switch {
	case errors.Is(err, cascade.ErrTooLarge):
		return "ERR value can never fit this rank: " + err.Error() + "; raise shm.bytes"
	case errors.Is(err, cascade.ErrNoRoom):
		return "OOM " + err.Error() + "; try again, or raise shm.bytes"
	}
	return "ERR " + err.Error()
}
