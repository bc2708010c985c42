package parttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Peers are the other ranks of a job, in memory. It implements others.Peers, and
// records what it is called for.
type Peers struct {
	mu          sync.Mutex
	has         map[residency.NameID][]directory.Statement
	bytes       map[block.ID][]byte
	gate        chan struct{} // what Read waits for, nil: nothing
	published   [][]directory.Statement
	located     []string
	reads       int
	batches     []int
	invalidated []directory.Statement
	touched     []string
	settled     int
	version     uint64 // of the last statement
}

// Hold makes data known under n: in the memory of rank 7 and, with a segment, there. What
// was known of the name is not so any more.
func (p *Peers) Hold(n block.Name, data []byte, inMemory bool, at *directory.Segment) directory.Statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.has == nil {
		p.has, p.bytes = map[residency.NameID][]directory.Statement{}, map[block.ID][]byte{}
	}
	p.version++
	st := directory.Statement{
		Name: n, Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)},
		Owner: 7, Incarnation: 1, Version: p.version, Segment: at,
	}
	if inMemory {
		st.Memory = &directory.Memory{Generation: 1}
		p.bytes[st.Info.ID] = data
	}
	p.has[residency.NameID{NS: n.Namespace, Key: n.Key}] = []directory.Statement{st}
	return st
}

// Gone is Hold of what rank 7 had in memory, and has no more.
func (p *Peers) Gone(n block.Name, data []byte, at *directory.Segment) {
	st := p.Hold(n, data, true, at)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.bytes, st.Info.ID)
}

// Damage has Read return other bytes of a block.
func (p *Peers) Damage(id block.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes[id] = Data(12345, len(p.bytes[id]))
}

// Stop has Read wait until the returned function is called.
func (p *Peers) Stop() (goOn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
	return sync.OnceFunc(func() { close(p.gate) })
}

// Publish records what is published together.
func (p *Peers) Publish(all ...directory.Statement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published = append(p.published, slices.Clone(all))
}

// Published returns what was published since the last call, call by call.
func (p *Peers) Published() [][]directory.Statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.published
	p.published = nil
	return all
}

// Settled counts its calls.
func (p *Peers) Settled(context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled++
	return true
}

// SettledCalls returns how often Settled was called.
func (p *Peers) SettledCalls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settled
}

// Locate returns what Hold made known.
func (p *Peers) Locate(_ context.Context, ns string, keys []string) [][]directory.Statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make([][]directory.Statement, len(keys))
	for i, k := range keys {
		p.located = append(p.located, k)
		found[i] = slices.Clone(p.has[residency.NameID{NS: ns, Key: k}])
	}
	return found
}

// Located returns the keys that were asked for since the last call.
func (p *Peers) Located() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.located
	p.located = nil
	return keys
}

// Read copies what a rank has in memory.
func (p *Peers) Read(ctx context.Context, reads []directory.Read) {
	p.mu.Lock()
	p.reads += len(reads)
	p.batches = append(p.batches, len(reads))
	gate := p.gate
	p.mu.Unlock()
	for i := range reads {
		reads[i].Err = p.readOne(ctx, gate, &reads[i])
	}
}

func (p *Peers) readOne(ctx context.Context, gate chan struct{}, r *directory.Read) error {
	p.mu.Lock()
	data := p.bytes[r.Copies[0].Info.ID]
	p.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if r.Copies[0].Memory == nil || data == nil {
		return fmt.Errorf("%w: no rank has it in memory", tiers.ErrNotFound)
	}
	copy(r.Dst, data)
	return nil
}

// Reads returns how many blocks were read since the last time.
func (p *Peers) Reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.reads
	p.reads = 0
	return n
}

// Batches returns how many blocks were read together since the last time, read by
// read.
func (p *Peers) Batches() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.batches
	p.batches = nil
	return all
}

// Invalidate records a statement.
func (p *Peers) Invalidate(s directory.Statement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.invalidated = append(p.invalidated, s)
}

// Invalidated returns what was taken back.
func (p *Peers) Invalidated() []directory.Statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.invalidated
}

// Touch records keys.
func (p *Peers) Touch(_ fabric.Rank, _ string, keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.touched = append(p.touched, keys...)
}

// Touched returns the keys that were used here.
func (p *Peers) Touched() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.touched
}

// Expire does nothing.
func (p *Peers) Expire(context.Context, string, string, time.Time) (bool, error) { return false, nil }

// Delete does nothing.
func (p *Peers) Delete(context.Context, string, string, uint64) error { return nil }

// Clear does nothing.
func (p *Peers) Clear(context.Context, string, bool, uint64) error { return nil }
