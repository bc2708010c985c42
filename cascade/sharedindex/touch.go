package sharedindex

import (
	"fmt"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// Touches is how one client reports what it has read by the shared index, so that
// the policies see its hits: a ring that it writes to, and that Sweep reads.
type Touches struct {
	index *Index
	ring  *shmindex.Ring
	from  traffic.Sender
}

// Touches makes a ring for a client. The caller must Close it.
func (ix *Index) Touches(from traffic.Sender) (*Touches, error) {
	ring, err := shmindex.NewRing()
	if err != nil {
		return nil, fmt.Errorf("cascade: touches: %w", err)
	}
	t := &Touches{ix, ring, from}
	ix.state.Mu.Lock()
	defer ix.state.Mu.Unlock()
	if ix.guarded.rings == nil {
		ix.guarded.rings = map[*Touches]struct{}{}
	}
	ix.guarded.rings[t] = struct{}{}
	return t, nil
}

// Clients returns how many clients report what they read.
func (ix *Index) Clients() int {
	ix.state.Mu.Lock()
	defer ix.state.Mu.Unlock()
	return len(ix.guarded.rings)
}

// File is the ring's descriptor, which stays its own, and its size in bytes.
func (t *Touches) File() (fd int, size int64) { return t.ring.File() }

// Close takes in the last touches and gives the ring up. It is called once.
func (t *Touches) Close() {
	s := t.index
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.drainOneLocked(t)
	delete(s.guarded.rings, t)
	t.ring.Close()
}

func (ix *Index) drainTouchesLocked() {
	for t := range ix.guarded.rings {
		ix.drainOneLocked(t)
	}
}

// drainOneLocked counts what a client read and passes it to the policies, as far as
// its places are of the table that is in use. Whatever the client wrote, it can do no
// more than that.
func (ix *Index) drainOneLocked(t *Touches) {
	touches, lost := t.ring.Drain(nil)
	ix.state.Count.Stats.Hits += lost
	t.ring.Lookups(func(ns string, l shmindex.Lookups) {
		ix.state.Count.LookupsLocked(ns, l.Asked, l.Found)
		ix.state.Count.MissesLocked(ns, l.Missed)
	})
	var run []*names.Name
	for _, touch := range touches {
		var n *names.Name
		if x := ix.guarded.table; x != nil {
			n = x.Touched(touch)
		}
		if n == nil {
			continue
		}
		ix.countTouchLocked(n)
		if len(run) > 0 && n.Parent() != run[len(run)-1] { // a run of parents and children is one request
			ix.passLocked(t, run)
			run = run[:0]
		}
		run = append(run, n)
		ix.state.Cold.UsedLocked(residency.BlockOf(n))
		ix.state.Requests.AddLocked(residency.BlockOf(n))
	}
	ix.passLocked(t, run)
}

// passLocked passes a run that was read to the policies, and to who records the traffic.
func (ix *Index) passLocked(t *Touches, run []*names.Name) {
	ix.state.Requests.PassLocked(true)
	if len(run) == 0 || !ix.state.Logs.Traffic.On() {
		return
	}
	ns := run[0].Namespace()
	read := traffic.Command{Kind: traffic.Got, Sender: t.from, At: ix.state.Now().UnixMilli(), Namespace: ns}
	if parent := run[0].ParentKey(); parent != "" {
		read.Parent = block.Fingerprint(ns, parent)
	}
	for _, n := range run {
		read.Keys = append(read.Keys, block.Fingerprint(ns, n.Key()))
	}
	ix.state.Logs.Traffic.Add(read)
}

// countTouchLocked counts a hit of a name that was read by the index.
func (ix *Index) countTouchLocked(n *names.Name) {
	ix.state.Count.Stats.Hits++
	n.Space().Hits++
	ix.state.Count.HitLocked(ix.state.FastestLocked(residency.BlockOf(n)), residency.BlockOf(n).Info.Size)
}
