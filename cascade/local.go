package cascade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cascadekv/cascade/content"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Local is a store as the other ranks use it; it implements dht.Local.
type Local struct{ Store *Store }

// Hold pins bytes of a memory tier while another rank reads them. The region
// is the tier's place among the memory tiers.
func (l Local) Hold(src fabric.Source) (fabric.Hold, error) {
	if int(src.Region) >= len(l.Store.state.Mem) {
		return nil, fmt.Errorf("%w: there is no region %d", fabric.ErrStale, src.Region)
	}
	m := l.Store.state.Mem[src.Region]
	at, length := tiers.Place{Offset: src.Offset, Generation: src.Generation}, src.Length
	if m.Memory.Region() == nil { // see residency.MemoryOf
		if at.Offset, length = -1, src.Offset+src.Length; src.Offset < 0 || length < src.Length {
			return nil, fmt.Errorf("%w: it begins at %d", fabric.ErrStale, src.Offset)
		}
	}
	p, err := m.Memory.PinPlace(at, length)
	switch {
	case errors.Is(err, tiers.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", fabric.ErrStale, err)
	case err != nil:
		return nil, err
	}
	bytes, free := p.Bytes(), noCopy
	if bytes == nil {
		if bytes, free, err = l.read(m, p); err != nil {
			p.Release()
			return nil, fmt.Errorf("%w: %w", fabric.ErrStale, err)
		}
	}
	skip := src.Offset - max(p.Offset(), 0)
	return &hold{p, bytes[skip : skip+src.Length], free}, nil
}

// read reads a block that the process can not address into a buffer. While the deep level is left alone
// none is read there: whoever reads for a rank reads for the others after it, too.
func (l Local) read(m *residency.Level, p tiers.Pin) (bytes []byte, free func(), err error) {
	s := l.Store.state
	if m == s.Deep() && m.NoReads.Lasts() {
		return nil, nil, fmt.Errorf("%s did not answer a moment ago: %w", m.Stats.Name, tiers.ErrUnavailable)
	}
	size := p.Info().Size
	if l.Store.forOthers.Add(size) > max(forOthersBytes, size) {
		l.Store.forOthers.Add(-size)
		return nil, nil, fmt.Errorf("%d bytes are being read for other ranks: %w", forOthersBytes, tiers.ErrUnavailable)
	}
	ctx, cancel := s.UntilFetched(context.Background())
	defer cancel()
	bytes, give, err := s.BytesOf(ctx, p)
	if m == s.Deep() && ctx.Err() != nil {
		m.NoReads.Begin()
	}
	if err != nil {
		residency.AfterIO(err, func() { l.Store.forOthers.Add(-size) })
		return nil, nil, err
	}
	return bytes, func() { give(); l.Store.forOthers.Add(-size) }, nil
}

// forOthersBytes bounds the buffers for what other ranks read and the process can not address. More is a miss: to wait
// could be for what the same reader has.
const forOthersBytes = 256 << 20

// SharedFile returns which region lies in a file, so that others can reach it by
// themselves: its number, the file's descriptor and its size in bytes. It is
// that of residency.Ladder.Host.
func (l Local) SharedFile() (region uint32, fd int, size int64) {
	m := l.Store.state.Host()
	return uint32(m.Index), m.Memory.File(), int64(len(m.Memory.Region()))
}

// hold is a pin of a block of which a reader wants a part.
type hold struct {
	tiers.Pin
	bytes []byte // what is wanted
	free  func() // of bytes that are a copy
}

// noCopy gives back what is no copy.
func noCopy() {}

func (h *hold) Bytes() []byte { return h.bytes }

func (h *hold) Release() {
	h.Pin.Release()
	h.free()
}

// State describes a name as it is now.
func (l Local) State(ns, key string) directory.Statement {
	if id, ok := directory.ContentID(key); ok && ns == directory.Contents {
		return l.Store.content.State(id)[0]
	}
	l.Store.state.Mu.Lock()
	st := []directory.Statement{l.Store.others.StateLocked(ns, key)}
	l.Store.state.Mu.Unlock()
	l.Store.others.AddCatalogued(st)
	return st[0]
}

// Names calls fn with the state of every name for which want is true. A name
// that comes or goes meanwhile may be left out: its change is published. It ends early when
// the store is closed, which waits for it.
func (l Local) Names(want func(ns, key string) bool, fn func(directory.Statement)) {
	if !l.begin() {
		return
	}
	defer l.Store.state.Workers.Done()
	for _, ns := range l.Store.state.Namespaces() {
		for cursor := uint64(0); ; {
			var keys []string
			cursor = l.Store.here.scanMany(ns, cursor, others.PublishStep, true, func(k string) bool {
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
	if err := errors.Join(l.Store.others.EachCatalogued(false, want, fn), l.Store.content.Each(want, fn)); err != nil {
		l.Store.state.Log.Warn("not all names that earlier runs left are published", "err", err)
	}
}

// begin makes the caller one of state.Workers, unless the store is closed.
func (l Local) begin() bool {
	l.Store.state.Mu.Lock()
	defer l.Store.state.Mu.Unlock()
	if l.Store.state.Mu.Closed {
		return false
	}
	l.Store.state.Workers.Add(1)
	return true
}

// Outdated withdraws a name put before the given stamp. Later puts here are
// stamped above it.
func (l Local) Outdated(ns, key string, before uint64) {
	l.Store.state.Mu.Lock()
	defer l.Store.state.Mu.Unlock()
	if ns == directory.Contents {
		l.Store.content.SecondLocked(key)
		return
	}
	l.Store.state.Mu.Names.Heard(before)
	l.Store.load.InvalidateFetchLocked(residency.NameID{NS: ns, Key: key}, before)
	if l.Store.others.UnbindBeforeLocked(ns, key, before) {
		l.Store.state.WakeWaitersLocked()
	}
}

// Entrust keeps names for bytes that this rank has in segments.
func (l Local) Entrust(ctx context.Context, list []directory.Statement) (refused []int) {
	return l.Store.content.Entrust(ctx, list)
}

// NamesOf lists visible names of a block on this rank.
func (l Local) NamesOf(id block.ID) []block.Name { return content.NamesOf(l.Store.state, id) }

// Expires sets when a name ends that is visible on this rank, if only in its catalogue.
func (l Local) Expires(ctx context.Context, ns, key string, at time.Time) bool {
	s := l.Store
	return s.here.expire(ns, key, at) || s.raise(ctx, ns, key) && s.here.expire(ns, key, at)
}

// Cleared withdraws the names of a namespace, or of all, that were put before a stamp. Later
// puts here are stamped above it.
func (l Local) Cleared(ns string, all bool, before uint64) {
	l.Store.content.Cleared(ns, all, before)
	l.Store.here.clear(ns, all, before)
}

// Status is the store's statistics as JSON.
func (l Local) Status() []byte {
	text, err := json.Marshal(CountedStats(l.Store))
	if err != nil {
		return []byte("{}") // Stats has only numbers and strings
	}
	return text
}
