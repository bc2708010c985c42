package sharedindex

import (
	"fmt"
	"slices"

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
	ix.guarded.rings = append(ix.guarded.rings, t)
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
	s.drainOneLocked(t, sweepMost)
	s.countLookupsLocked(t)
	s.guarded.rings = slices.DeleteFunc(s.guarded.rings, func(x *Touches) bool { return x == t })
	t.ring.Close()
}

func (ix *Index) drainTouchesLocked() {
	ix.SweepTouchesLocked()
	for _, t := range ix.guarded.rings {
		ix.countLookupsLocked(t)
	}
}

// drainKeys is how many keys of look-ups are passed for the touches of one client, at most, before the
// mutex is released.
const drainKeys = 4 * residency.LookStep

// sweepMost is how much Sweep takes in of a client at once: all the touches that its ring has room for.
const sweepMost = shmindex.RingSlots

// drainOneLocked takes in what a client has looked up and read, up to most touches and keys, and returns how
// many of these are left. Whatever the client wrote, it can do no more than that.
func (ix *Index) drainOneLocked(t *Touches, most int) int {
	left := drainKeys
	return t.ring.Drain(most, func(touches []uint64, lost uint64) {
		ix.state.Count.Stats.Hits += lost
		ix.readLocked(t, touches, &left)
	}, func(ns string, n *shmindex.Note) {
		ix.notedLocked(t, ns, n, &left)
	})
}

// countLookupsLocked counts what a client has looked for.
func (ix *Index) countLookupsLocked(t *Touches) {
	t.ring.Lookups(func(ns string, l shmindex.Lookups) {
		ix.state.Count.LookupsLocked(ns, l.Asked, l.Found)
		ix.state.Count.MissesLocked(ns, l.Missed)
	})
}

// touchedLocked returns the name that a client read, nil if its place is not one of the table that is
// in use.
func (ix *Index) touchedLocked(touch uint64) *names.Name {
	if x := ix.guarded.table; x != nil {
		return x.Touched(touch)
	}
	return nil
}

// readLocked counts what a client read and passes it to the policies, unless it is part of a look-up
// that was passed.
func (ix *Index) readLocked(t *Touches, touches []uint64, left *int) {
	var run []*names.Name
	for _, touch := range touches {
		n := ix.touchedLocked(touch)
		if n == nil {
			continue
		}
		ix.countTouchLocked(n)
		if len(run) > 0 && n.Parent() != run[len(run)-1] { // a run of parents and children is one request
			ix.passLocked(t, run)
			run = run[:0]
		}
		run = append(run, n)
		ix.state.Requests.UsedLocked(residency.BlockOf(n))
		if !ix.state.Requests.LookedLocked(n.Namespace(), n.Key(), left) {
			ix.state.Requests.AddLocked(residency.BlockOf(n))
		}
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
