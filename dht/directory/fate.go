package directory

import (
	"math"
	"sync"

	"cascadekv/dht/fabric"
	"cascadekv/internal/losslog"
)

// Fate is what became of a name that has no copy any more, as far as one of its homes
// remembers. The zero value knows nothing.
type Fate struct {
	Deleted bool        // lately: see keepTombstone
	Dead    bool        // a process had its block in memory, and nobody else did, that is no more,
	Owner   fabric.Rank // of this rank
}

// fates remembers names whose last copy a dead process had, by the hash of their keys. It is
// safe for concurrent use.
type fates struct {
	mu  sync.Mutex
	log losslog.Log
}

// fateBytes is what is taken to remember 4,096 such names.
const fateBytes = 64 << 10

func newFates() fates { return fates{log: losslog.New(fateBytes)} }

// add remembers a name, unless the rank has a number that a loss has no room for.
func (f *fates) add(hash uint64, owner fabric.Rank) {
	if owner > math.MaxUint16 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log.Add(hash, losslog.Loss{Reason: losslog.RankDead, Where: uint16(owner)})
}

func (f *fates) of(hash uint64) (owner fabric.Rank, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.log.Last(hash)
	return fabric.Rank(l.Where), ok
}

// Fate returns what became of a name.
func (d *Directory) Fate(namespace, name string) Fate {
	k := key{namespace, name}
	sh, e := d.find(k)
	there, buried := e.newest() != nil, e.buried > 0
	sh.mu.Unlock()
	if there || buried {
		return Fate{Deleted: !there}
	}
	owner, dead := d.fates.of(d.hash(k))
	return Fate{Dead: dead, Owner: owner}
}
