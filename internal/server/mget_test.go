package server

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"cascadekv/lustre"
	"cascadekv/tiers"
)

// counted counts the calls that read a cold tier.
type counted struct {
	*lustre.Tier
	calls atomic.Int64
}

func (c *counted) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	c.calls.Add(1)
	return c.Tier.ReadBatch(ctx, reads)
}

// TestMGetIsOneRequest: values come in the order of their keys, with nulls
// between them, and those that are on disk are read together.
func TestMGetIsOneRequest(t *testing.T) {
	const n = 500
	args := []string{"MGET"}
	values := map[string][]byte{}
	for i := range n {
		key := fmt.Sprint("k", i)
		args = append(args, key)
		if i%7 != 3 { // else not there
			values[key] = randomBytes(uint64(i), 9000)
		}
	}
	cold := &counted{Tier: leftBehind(t, values)}
	r := newRigOver(t, 64<<20, cold)
	c := r.client("unix")
	for range 2 {
		reply, err := c.Do(args...)
		if err != nil || len(reply.Elems) != n {
			t.Fatalf("%d values, %v", len(reply.Elems), err)
		}
		for i, e := range reply.Elems {
			want := values[args[1+i]]
			if e.Null() != (want == nil) || !bytes.Equal(e.Str, want) {
				t.Errorf("value %d is wrong", i)
			}
		}
		// First mgetFirst keys, then as many as fit in parts of the store.
		if calls := cold.calls.Load(); calls > 4 {
			t.Errorf("%d values were read with %d calls", len(values), calls)
		}
	}
}

// TestMGetOfManyLargeValues: more than are asked for at once, to a client that
// reads them and to one that leaves.
func TestMGetOfManyLargeValues(t *testing.T) {
	r := newRig(t, 160<<20)
	c := r.client("unix")
	args := []string{"MGET"}
	for i := range 50 {
		key := fmt.Sprint("k", i)
		if err := c.Set(key, randomBytes(uint64(i), 2<<20)); err != nil {
			t.Fatal(err)
		}
		args = append(args, key, "absent")
	}
	reply, err := c.Do(args...)
	if err != nil || len(reply.Elems) != 100 {
		t.Fatalf("%d values, %v", len(reply.Elems), err)
	}
	for i := range 50 {
		if !bytes.Equal(reply.Elems[2*i].Str, randomBytes(uint64(i), 2<<20)) || !reply.Elems[2*i+1].Null() {
			t.Errorf("value %d is wrong", i)
		}
	}
	raw, rd := r.raw("unix")
	fmt.Fprintf(raw, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(raw, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := rd.ReadByte(); err != nil {
		t.Fatal(err)
	}
	raw.Close() // newRig sees that nothing stays pinned
}
