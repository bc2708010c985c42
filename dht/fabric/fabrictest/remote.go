package fabrictest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cascadekv/dht/fabric"
)

// The commands of a peer. A request is the command and its numbers, 8 bytes
// little-endian each; opEcho takes any bytes, and no bytes are no command.
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

func (c command) encode() []byte {
	return append([]byte{c.op}, encodeNumbers(c.a, c.b)...)
}

func (c *command) decode(req []byte) error {
	if len(req) != 17 {
		return fmt.Errorf("fabrictest: a command of %d bytes", len(req))
	}
	c.op, c.a, c.b = req[0], binary.LittleEndian.Uint64(req[1:]), binary.LittleEndian.Uint64(req[9:])
	return nil
}

func encodeNumbers(numbers ...uint64) []byte {
	b := make([]byte, 0, 8*len(numbers))
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// decodeNumbers returns exactly n numbers.
func decodeNumbers(b []byte, n int) ([]uint64, error) {
	if len(b) != 8*n {
		return nil, fmt.Errorf("fabrictest: an answer of %d bytes, want %d", len(b), 8*n)
	}
	numbers := make([]uint64, n)
	for i := range numbers {
		numbers[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return numbers, nil
}

// Remote commands the peer that Rank serves. Its methods return the errors of
// Fabric.Call.
type Remote struct {
	Fabric fabric.Fabric
	Rank   fabric.Rank
}

func (r Remote) command(ctx context.Context, op byte, a, b uint64) ([]byte, error) {
	return r.Fabric.Call(ctx, r.Rank, command{op, a, b}.encode())
}

// Sleep lets the peer take d to answer.
func (r Remote) Sleep(ctx context.Context, d time.Duration) error {
	_, err := r.command(ctx, opSleep, uint64(d), 0)
	return err
}

// Remaining is how long the peer's handler thinks it has.
func (r Remote) Remaining(ctx context.Context) (time.Duration, error) {
	b, err := r.command(ctx, opRemaining, 0, 0)
	if err != nil {
		return 0, err
	}
	n, err := decodeNumbers(b, 1)
	if err != nil {
		return 0, err
	}
	return time.Duration(n[0]), nil
}

// Put makes the peer store a block of length bytes with the content that Fill
// gives for seed, and returns where it is.
func (r Remote) Put(ctx context.Context, length int64, seed uint64) (fabric.Source, error) {
	b, err := r.command(ctx, opPut, uint64(length), seed)
	if err != nil {
		return fabric.Source{}, err
	}
	n, err := decodeNumbers(b, 4)
	if err != nil {
		return fabric.Source{}, err
	}
	return fabric.Source{Region: uint32(n[0]), Offset: int64(n[1]), Length: int64(n[2]), Generation: n[3]}, nil
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
func (r Remote) Stats(ctx context.Context) (Stats, error) {
	b, err := r.command(ctx, opStats, 0, 0)
	if err != nil {
		return Stats{}, err
	}
	n, err := decodeNumbers(b, 5)
	if err != nil {
		return Stats{}, err
	}
	return Stats{Calls: int64(n[0]), Running: int64(n[1]), Holds: int64(n[2]), Faults: int64(n[3]), Blocks: int64(n[4])}, nil
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
