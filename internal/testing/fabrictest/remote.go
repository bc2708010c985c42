package fabrictest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cascadekv/dht/fabric"
)

// The commands of a peer. A request is the command's letter and, in JSON, its two
// numbers, and answers are in JSON; opEcho takes any bytes, and no bytes are no
// command.
const (
	opEcho      = 'e' // answers the whole request
	opSleep     = 's' // nanoseconds
	opRemaining = 'r' // answers the nanoseconds to the handler's deadline
	opFail      = 'f' // answers the error failure
	opLong      = 'l' // bytes to answer
	opPut       = 'p' // length, seed; answers a source
	opEvict     = 'v' // generation
	opEvictHeld = 'w' // generation, to be evicted when somebody holds it
	opStats     = 'c' // answers Stats
	opQuit      = 'q'
)

// failure is what opFail answers.
const failure = "this is what was asked for"

// command is a decoded request.
type command struct {
	op   byte
	a, b uint64
}

func (c *command) decode(req []byte) error {
	c.op = req[0]
	numbers := []*uint64{&c.a, &c.b}
	return json.Unmarshal(req[1:], &numbers)
}

// Remote commands the peer that Rank serves. Its methods return the errors of
// Fabric.Call.
type Remote struct {
	Fabric fabric.Fabric
	Rank   fabric.Rank
}

func (r Remote) command(ctx context.Context, op byte, a, b uint64) ([]byte, error) {
	return r.Fabric.Call(ctx, r.Rank, fmt.Appendf(nil, "%c[%d,%d]", op, a, b))
}

// ask is a command whose answer is read into v.
func (r Remote) ask(ctx context.Context, v any, op byte, a, b uint64) error {
	text, err := r.command(ctx, op, a, b)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	return err
}

// Sleep lets the peer take d to answer.
func (r Remote) Sleep(ctx context.Context, d time.Duration) error {
	_, err := r.command(ctx, opSleep, uint64(d), 0)
	return err
}

// Remaining is how long the peer's handler thinks it has.
func (r Remote) Remaining(ctx context.Context) (left time.Duration, err error) {
	err = r.ask(ctx, &left, opRemaining, 0, 0)
	return left, err
}

// Put makes the peer store a block of length bytes with the content that Fill
// gives for seed, and returns where it is.
func (r Remote) Put(ctx context.Context, length int64, seed uint64) (src fabric.Source, err error) {
	err = r.ask(ctx, &src, opPut, uint64(length), seed)
	return src, err
}

// Evict ends the stay of a block.
func (r Remote) Evict(ctx context.Context, src fabric.Source) error {
	_, err := r.command(ctx, opEvict, src.Generation, 0)
	return err
}

// EvictHeld ends the stay of a block as soon as the peer is asked to hold it.
func (r Remote) EvictHeld(ctx context.Context, src fabric.Source) error {
	_, err := r.command(ctx, opEvictHeld, src.Generation, 0)
	return err
}

// Stats returns the peer's counters.
func (r Remote) Stats(ctx context.Context) (s Stats, err error) {
	err = r.ask(ctx, &s, opStats, 0, 0)
	return s, err
}

// Quit ends the peer, which is not needed any more: see Peer.Quit.
func (r Remote) Quit(ctx context.Context) error {
	_, err := r.command(ctx, opQuit, 0, 0)
	return err
}

// Fill writes what a block of seed holds. A shorter block holds the first
// bytes of a longer one.
func Fill(p []byte, seed uint64) { rand.NewChaCha8(key(seed)).Read(p) }

// Check reports whether p holds the bytes that Fill gives for seed, from the
// offset from on.
func Check(p []byte, seed uint64, from int64) error {
	r := rand.NewChaCha8(key(seed))
	buf := make([]byte, 64<<10)
	for skip := from; skip > 0; {
		n, err := r.Read(buf[:min(skip, int64(len(buf)))])
		if err != nil {
			return err
		}
		skip -= int64(n)
	}
	for off := 0; off < len(p); {
		want := buf[:min(len(buf), len(p)-off)]
		r.Read(want) // never fails
		if got := p[off : off+len(want)]; !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			return fmt.Errorf("byte %d of %d is %#x, want %#x", off+i, len(p), got[i], want[i])
		}
		off += len(want)
	}
	return nil
}

func key(seed uint64) (k [32]byte) {
	binary.LittleEndian.PutUint64(k[:], seed)
	return k
}

// Settled waits until the memory of a failed Read is the caller's again, which
// it is at once unless the error is fabric.Lingering. It gives up when ctx
// ends.
func Settled(ctx context.Context, err error) error {
	if l, ok := errors.AsType[fabric.Lingering](err); ok {
		select {
		case <-l.Done():
		case <-ctx.Done():
			return fmt.Errorf("fabrictest: the read still lingers: %w", ctx.Err())
		}
	}
	return nil
}
