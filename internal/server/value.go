package server

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
	"cascadekv/tiers"
)

// valueSink routes the value of a SET from the socket into tier memory. It
// holds at most one stage at a time.
type valueSink struct {
	conn    *conn
	stage   *cascade.Stage
	transit int64 // bytes that the stage counts in Server.transit
	err     error // why the value was dropped

	ready time.Time // since when the rest of the command is waited for
}

// proofBytes are received of a value before there is room for the whole of it in
// a tier, so that what only announces a value evicts nothing.
const proofBytes = 64 << 10

// proofs is memory for these.
var proofs = sync.Pool{New: func() any { return new([proofBytes]byte) }}

// Bulk implements resp.Sink: SET's and CASCADE.PUT's value is argument 2.
func (v *valueSink) Bulk(args [][]byte, size int64) (resp.Receiver, error) {
	if len(args) != 2 || !v.conn.authed || !takesValue(args[0]) {
		return nil, nil
	}
	v.abort()
	return v, nil
}

func takesValue(name []byte) bool {
	return len(name) == 3 && strings.EqualFold(string(name), "SET") ||
		len(name) == 11 && strings.EqualFold(string(name), "CASCADE.PUT")
}

// Receive implements resp.Receiver.
func (v *valueSink) Receive(head []byte, rest int64) error {
	w, size := v.conn.sock, int64(len(head))+rest
	w.BeginValue(size)
	if first := min(size, proofBytes); int64(len(head)) < first {
		if v.err = v.conn.takeProof(first); v.err != nil {
			return w.Discard(rest)
		}
		defer v.conn.srv.arriving.Give(first, v.conn.own)
		proof := proofs.Get().(*[proofBytes]byte)
		defer proofs.Put(proof)
		n := copy(proof[:first], head)
		head, rest = proof[:first], size-first
		if err := w.Gather(head, n); err != nil {
			return err
		}
	}
	if v.err = v.reserve(size); v.err != nil {
		return w.Discard(rest)
	}
	v.stage.Append(head)
	return w.Pour(rest, v.stage)
}

// takeProof counts the memory for the beginning of a value.
func (c *conn) takeProof(n int64) error {
	if !c.srv.arriving.Take(n, c.own) {
		return fmt.Errorf("%w: too many values arrive at once", cascade.ErrNoRoom)
	}
	return nil
}

// reserve makes room for a value of which the beginning is there. The values that
// others than the rank's own user send wait for each other when they would take
// more than their part of memory.
func (v *valueSink) reserve(size int64) (err error) {
	c := v.conn
	ctx, cancel := c.Context()
	defer cancel()
	defer func() { v.ready = time.Now() }()
	if !c.srv.transit.TakeSoon(ctx, size, c.own) {
		return fmt.Errorf("%w: values that other clients have begun to send take it", cascade.ErrNoRoom)
	}
	v.transit = size
	v.stage, err = c.srv.opt.Store.Stage(ctx, size)
	if err != nil {
		v.arrived()
	}
	return err
}

// arrived ends that the value counts as one that arrives.
func (v *valueSink) arrived() {
	if v.transit > 0 {
		v.conn.srv.transit.Give(v.transit, v.conn.own)
		v.transit = 0
	}
}

// take hands the stage over to its command.
func (v *valueSink) take() *cascade.Stage {
	st := v.stage
	v.stage = nil
	v.arrived()
	return st
}

// abort gives back a stage that no command took.
func (v *valueSink) abort() {
	v.err = nil
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
