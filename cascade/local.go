package cascade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

// Local is a store as the other ranks use it; it implements dht.Local.
type Local struct{ *Store }

// Hold pins bytes of a memory tier while another rank reads them. The region
// is the tier's place among the memory tiers.
func (l Local) Hold(src fabric.Source) (fabric.Hold, error) {
	if int(src.Region) >= len(l.mem) {
		return nil, fmt.Errorf("%w: there is no region %d", fabric.ErrStale, src.Region)
	}
	at := tiers.Place{Offset: src.Offset, Generation: src.Generation}
	p, err := l.mem[src.Region].tier.PinPlace(at, src.Length)
	switch {
	case errors.Is(err, tiers.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", fabric.ErrStale, err)
	case err != nil:
		return nil, err
	}
	return hold{p, src.Offset, src.Length}, nil
}

// SharedFile tells which region lies in a file, so that others can reach it by
// themselves: its number, the file's descriptor and its size in bytes. It is
// the slowest memory tier's, of which there is always one.
func (l Local) SharedFile() (region uint32, fd int, size int64) {
	m := l.last()
	return uint32(m.index), m.tier.File(), int64(len(m.tier.Region()))
}

// hold is a pin of a block of which a reader wants a part.
type hold struct {
	tiers.Pin
	offset, length int64 // as in fabric.Source
}

func (h hold) Bytes() []byte {
	skip := h.offset - h.Pin.Offset()
	return h.Pin.Bytes()[skip : skip+h.length]
}

// State describes a name as it is now.
func (l Local) State(ns, key string) directory.Statement {
	l.mu.Lock()
	st := []directory.Statement{l.stateLocked(ns, key)}
	l.mu.Unlock()
	l.fillIn(st)
	return st[0]
}

// Names calls fn with the state of every name for which want is true. A name
// that comes or goes meanwhile may be left out: its change is published.
func (l Local) Names(want func(ns, key string) bool, fn func(directory.Statement)) {
	for _, ns := range l.namespaces() {
		for cursor := uint64(0); ; {
			var keys []string
			cursor = l.Scan(ns, cursor, publishStep, func(k string) bool {
				if want(ns, k) {
					keys = append(keys, k)
				}
				return true
			})
			for _, k := range keys {
				if st := l.State(ns, k); st.Has() {
					fn(st)
				}
			}
			if cursor == 0 {
				break
			}
		}
	}
	if err := l.eachCatalogued(false, want, fn); err != nil {
		l.log.Warn("other ranks are not told of all that earlier ones left", "err", err)
	}
}

// Outdated withdraws a name put before the given stamp. Later puts here are
// stamped above it.
func (l Local) Outdated(ns, key string, before uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.names.Observe(before)
	l.invalidateFetchLocked(nameID{ns, key}, before)
	if l.unbindBeforeLocked(ns, key, before) {
		l.wakeWaitersLocked()
	}
}

// Expires sets when a name ends.
func (l Local) Expires(ns, key string, at time.Time) {
	if !l.expireHere(ns, key, at) && l.others.Load() {
		l.workers.Go(func() {
			defer fault.Guard()()
			if l.raise(context.Background(), ns, key) {
				l.expireHere(ns, key, at)
			}
		})
	}
}

// Touched makes the chain that another rank used as young as one used here.
func (l Local) Touched(ns string, keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.ranked {
		var chain []policy.Node
		for _, k := range keys {
			n := l.lookupLocked(ns, k)
			if n == nil {
				continue
			}
			if node, there := r.node(stateOf(n)); there {
				chain = append(chain, node)
			}
		}
		if len(chain) > 0 {
			r.policy.Access(l.age(), chain, len(chain))
		}
	}
}

// Cleared withdraws all names of a namespace, or of all.
func (l Local) Cleared(ns string, all bool) {
	l.clear(ns, all)
	l.invalidateFetches(ns, all)
}

// Status is the store's statistics as JSON.
func (l Local) Status() []byte {
	text, err := json.Marshal(l.Stats())
	if err != nil {
		return []byte("{}") // Stats has only numbers and strings
	}
	return text
}
