package sharedindex

import (
	"strings"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// lookup is what a note has of the keys of a look-up: those that are here by name, the rest by
// fingerprint alone.
type lookup struct {
	ns     string
	at     time.Time
	keys   []string
	prints []uint64 // in parallel
	found  []bool
	parent string // of the first key, if that is known
}

// catchUp bounds what a get, a put or an eviction takes in of all clients: touches, and keys of look-ups, the last of
// which is taken in whole. What is more waits for the next one, or for Sweep.
const catchUp = 1024

// CatchUpLocked takes in what clients have looked up and read by the index: it comes before what the
// rank is asked for next, and before it chooses what leaves.
func (ix *Index) CatchUpLocked() {
	ix.state.Mu.AssertHeld()
	most := catchUp
	for range ix.guarded.rings {
		ix.guarded.next++
		t := ix.guarded.rings[ix.guarded.next%len(ix.guarded.rings)]
		if t.ring.News() {
			if most = ix.drainOneLocked(t, most); most == 0 {
				return
			}
		}
	}
}

// SweepTouchesLocked is CatchUpLocked of as much as Sweep reads: for who records the traffic, in order.
func (ix *Index) SweepTouchesLocked() {
	ix.state.Mu.AssertHeld()
	for _, t := range ix.guarded.rings {
		if t.ring.News() {
			ix.drainOneLocked(t, sweepMost)
		}
	}
}

// notedLocked takes in a note of a client: an opinion of what is asked for, whatever the client wrote.
func (ix *Index) notedLocked(t *Touches, ns string, n *shmindex.Note, left *int) {
	requests, missing := &ix.state.Requests, 0
	for _, k := range n.Keys {
		if !k.Here {
			missing++
		}
	}
	if n.Kind == shmindex.Contained && !residency.IsRequest(len(n.Keys), missing) && !ix.state.Logs.Traffic.On() {
		return
	}
	l := ix.lookupLocked(ns, n)
	if len(l.keys) == 0 {
		return
	}
	switch {
	case n.Kind == shmindex.ReadMissed:
		ix.missedLocked(l, left)
	case n.Kind == shmindex.Probed || residency.IsRequest(len(l.keys), missing):
		requests.NoteMissing(l.at, ns, l.prints, func(i int) bool { return l.found[i] })
		requests.AddLookupLocked(l.at, l.keys, l.prints, residency.Hint{})
	}
	ix.recordLocked(t, n.Kind, l)
}

// lookupLocked returns what a note is of, without the keys whose places are no more what they were.
func (ix *Index) lookupLocked(ns string, n *shmindex.Note) lookup {
	l := lookup{ns: ns, at: time.Unix(0, n.At)}
	if now := ix.state.Now(); l.at.After(now) {
		l.at = now
	} else if oldest := now.Add(-notedWithin); l.at.Before(oldest) {
		l.at = oldest
	}
	for i, k := range n.Keys {
		key := ""
		if k.Here {
			name := ix.touchedLocked(shmindex.Touch(uint64(n.Table), k.Place))
			if name == nil || name.Namespace() != ns {
				continue
			}
			if key = name.Key(); i == 0 {
				l.parent = name.ParentKey()
			}
		}
		l.keys, l.prints, l.found = append(l.keys, key), append(l.prints, max(k.Print, 1)), append(l.found, k.Here)
	}
	for i, print := range block.Fingerprints(ns, l.keys...) {
		if l.found[i] {
			l.prints[i] = print
		}
	}
	return l
}

// notedWithin is how long ago a look-up may be: Sweep comes much sooner, and longer ago nothing follows from it.
const notedWithin = time.Hour

// missedLocked passes keys that were read, and not found, to the policies.
func (ix *Index) missedLocked(l lookup, left *int) {
	for _, print := range l.prints {
		if !ix.state.Requests.LookedPrintLocked(l.ns, print, left) {
			ix.state.Requests.AddMissLocked(print)
		}
	}
	ix.state.Requests.PassLocked(true)
}

// recordLocked passes what a note is of to who records the traffic.
func (ix *Index) recordLocked(t *Touches, kind shmindex.NoteKind, l lookup) {
	if !ix.state.Logs.Traffic.On() || strings.HasPrefix(l.ns, "\x00") {
		return
	}
	c := traffic.Command{Kind: traffic.Looked, Chained: true, Sender: t.from, At: l.at.UnixMilli(), Namespace: l.ns, Keys: l.prints}
	if kind == shmindex.ReadMissed {
		c.Kind = traffic.Got
	}
	if l.parent != "" {
		c.Parent = block.Fingerprint(l.ns, l.parent)
	}
	ix.state.Logs.Traffic.Add(c)
}
