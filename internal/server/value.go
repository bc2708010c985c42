package server

import (
	"errors"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
	"cascadekv/tiers"
)

// valueSink routes the value of a SET from the socket into tier memory. It
// holds at most one stage at a time.
type valueSink struct {
	conn  *conn
	stage *cascade.Stage
	err   error // why the value was dropped

	ready time.Time // since when the rest of the command is waited for
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
	v.ready = time.Now()
	if err != nil {
		return nil, err
	}
	v.stage = st
	return v, nil
}

func takesValue(name []byte) bool {
	return len(name) == 3 && strings.EqualFold(string(name), "SET") ||
		len(name) == 11 && strings.EqualFold(string(name), "CASCADE.PUT")
}

// Receive implements resp.Receiver.
func (v *valueSink) Receive(head []byte, rest int64) error {
	v.stage.Append(head)
	v.conn.wire.patience = stallDeadline // for the rest of the command too: it holds room
	return v.conn.wire.pour(rest, v.stage)
}

// take hands the stage over to its command.
func (v *valueSink) take() *cascade.Stage {
	st := v.stage
	v.stage = nil
	return st
}

// abort gives back a stage that no command took.
func (v *valueSink) abort() {
	if st := v.take(); st != nil {
		st.Abort()
	}
}

// roomText is the answer to a client whose value was not stored. Where a tier is
// too small, or smaller than configured, its error has the remedy.
func roomText(err error) string {
	switch {
	case errors.Is(err, cascade.ErrTooLarge):
		return "ERR value can never fit this rank: " + err.Error()
	case errors.Is(err, tiers.ErrShort):
		return "OOM " + err.Error()
	case errors.Is(err, cascade.ErrNoRoom):
		return "OOM " + err.Error() + "; try again, or raise shm.bytes"
	}
	return "ERR " + err.Error()
}
