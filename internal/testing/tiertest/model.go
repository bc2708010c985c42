package tiertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// model compares a tier with a map over a long random run.
func (c Config) model(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := &model{
				c: c, t: t, rng: rand.New(rand.NewPCG(seed, 7)),
				tr:   c.fresh(t, tight),
				live: map[block.ID]tiers.Item{}, ghosts: map[block.ID]bool{},
				names: map[string]modelName{}, pins: map[block.ID][]tiers.Pin{},
			}
			t.Cleanup(func() { // a pin left over would hold up the tier's Close
				for _, pins := range m.pins {
					for _, p := range pins {
						p.Release()
					}
				}
			})
			for range 400 {
				m.step()
				if t.Failed() {
					return
				}
			}
			m.unpin()
			m.verify()
		})
	}
}

// modelName is what the model knows of a name. A weak one lost its block by
// eviction: it may come back with the block, but no older record may. A
// doubtful one was not found after a crash: nothing is known.
type modelName struct {
	nameRecord
	weak, doubtful bool
}

type model struct {
	c      Config
	t      *testing.T
	rng    *rand.Rand
	tr     *opened
	live   map[block.ID]tiers.Item
	ghosts map[block.ID]bool
	names  map[string]modelName
	pins   map[block.ID][]tiers.Pin
	seq    uint64
}

func (m *model) step() {
	switch op := m.rng.IntN(100); {
	case op < 40:
		m.put()
	case op < 60:
		m.read()
	case op < 75:
		m.evict()
	case op < 85:
		m.link()
	case op < 90:
		m.unlink()
	case op < 94:
		m.unpin()
	case op < 98:
		m.slot()
	default:
		m.reopen()
	}
}

// some returns an item out of a small universe, so that operations meet.
func (m *model) some() tiers.Item {
	n := m.rng.IntN(60)
	return item(uint64(n), []int64{0, 1, 28, 500, 513, 4096, 5000, 20000, 70000, 300000}[n%10])
}

func (m *model) someKey() string { return fmt.Sprint("k", m.rng.IntN(30)) }

// nextName returns a newer record of some name, whose older one is withdrawn.
func (m *model) nextName() block.Name {
	key := m.someKey()
	m.forget(key)
	m.seq++
	return name(key, m.seq)
}

func (m *model) put() {
	var items []tiers.Item
	exists := false
	seen := map[block.ID]bool{}
	for range 1 + m.rng.IntN(4) {
		it := m.some()
		if m.rng.IntN(2) == 0 {
			it.Names = []block.Name{m.nextName()}
		}
		_, stored := m.live[it.Info.ID]
		exists = exists || stored || seen[it.Info.ID]
		seen[it.Info.ID] = true
		items = append(items, it)
	}
	err := m.tr.Put(m.t.Context(), items...)
	switch {
	case err == nil && !exists:
		for _, it := range items {
			m.stored(it)
		}
	case errors.Is(err, tiers.ErrExists) && exists:
	case errors.Is(err, tiers.ErrFull) && m.c.Bounded:
	default:
		m.t.Errorf("Put of %d items, one of them stored: %v: error %v", len(items), exists, err)
	}
}

func (m *model) stored(it tiers.Item) {
	m.live[it.Info.ID] = it
	delete(m.ghosts, it.Info.ID)
	for _, n := range it.Names {
		m.names[n.Key] = modelName{nameRecord: nameRecord{id: it.Info.ID, name: n}}
	}
}

func (m *model) read() {
	it := m.some()
	p, err := m.tr.Pin(it.Info.ID)
	if _, stored := m.live[it.Info.ID]; stored != (err == nil) {
		m.t.Errorf("Pin of a block that is stored: %v: error %v", stored, err)
	}
	if err != nil {
		return
	}
	samePin(m.t, p, it)
	if m.rng.IntN(4) > 0 {
		p.Release()
	} else {
		m.pins[it.Info.ID] = append(m.pins[it.Info.ID], p)
	}
}

func (m *model) evict() {
	it := m.some()
	_, stored := m.live[it.Info.ID]
	err := m.tr.Evict(it.Info.ID)
	switch {
	case !stored:
		wantErr(m.t, "Evict", err, tiers.ErrNotFound)
	case len(m.pins[it.Info.ID]) > 0:
		wantErr(m.t, "Evict", err, tiers.ErrPinned)
	case err != nil:
		m.t.Errorf("Evict: %v", err)
	default:
		m.evicted(it.Info.ID)
	}
}

func (m *model) evicted(id block.ID) {
	delete(m.live, id)
	m.ghosts[id] = true
	for key, r := range m.names {
		if r.id == id && !r.dropped {
			r.weak = true
			m.names[key] = r
		}
	}
}

func (m *model) link() {
	it, n := m.some(), m.nextName()
	_, stored := m.live[it.Info.ID]
	err := m.tr.Link(it.Info.ID, n)
	switch {
	case err == nil && stored:
		m.names[n.Key] = modelName{nameRecord: nameRecord{id: it.Info.ID, name: n}}
	case err == nil && !m.c.Persistent:
	case errors.Is(err, tiers.ErrNotFound) && !stored:
	case errors.Is(err, tiers.ErrFull) && m.c.Bounded:
	default:
		m.t.Errorf("Link to a block that is stored: %v: error %v", stored, err)
	}
}

func (m *model) unlink() { m.forget(m.someKey()) }

// forget withdraws a name from the block it was recorded with, if any, as the
// store does before it records it with another.
func (m *model) forget(key string) {
	old, ok := m.names[key]
	if !ok || old.dropped {
		return
	}
	m.seq++
	n := old.name
	n.Seq = m.seq
	if err := m.tr.Unlink(old.id, n); err != nil {
		m.t.Errorf("Unlink: %v", err)
	}
	m.names[key] = modelName{nameRecord: nameRecord{dropped: true, name: n}}
}

func (m *model) unpin() {
	for id, pins := range m.pins {
		for _, p := range pins {
			samePin(m.t, p, m.live[id])
			p.Release()
		}
		delete(m.pins, id)
	}
}

func (m *model) slot() {
	mem, ok := m.tr.Tier.(tiers.Memory)
	if !ok {
		return
	}
	it := m.some()
	s, err := mem.Reserve(it.Info.Size)
	if errors.Is(err, tiers.ErrFull) {
		return
	}
	if err != nil {
		m.t.Errorf("Reserve: %v", err)
		return
	}
	write(m.t, s, it)
	if m.rng.IntN(3) == 0 {
		s.Abort()
		return
	}
	err = s.Commit(it.Info, nil)
	if _, stored := m.live[it.Info.ID]; stored {
		wantErr(m.t, "Commit", err, tiers.ErrExists)
	} else if err != nil {
		m.t.Errorf("Commit: %v", err)
	} else {
		m.stored(it)
	}
}

// reopen ends the process, cleanly or not, and checks what the next one finds.
func (m *model) reopen() {
	m.unpin()
	clean := !m.c.Persistent || m.rng.IntN(2) == 0
	if clean {
		m.tr = m.c.reopened(m.t, m.tr, tight)
	} else {
		m.tr = m.c.crashed(m.t, m.tr, tight)
	}
	if !m.c.Persistent {
		clear(m.live)
		clear(m.names)
		return
	}
	m.verify()
	m.verifyNames(clean)
	for id := range m.tr.blocks {
		if _, stored := m.live[id]; stored {
			continue
		}
		if !m.ghosts[id] {
			m.t.Errorf("recovery found block %v, which was never stored", id)
		}
		if err := m.tr.Evict(id); err != nil {
			m.t.Errorf("Evict of a ghost: %v", err)
		}
		m.evicted(id)
	}
}

// verify compares everything stored.
func (m *model) verify() {
	for _, it := range m.live {
		readBack(m.t, m.tr, it)
	}
}

// verifyNames compares the names that recovery found. After a crash the last
// links may be missing, so the model takes over what the tier returns.
func (m *model) verifyNames(clean bool) {
	for key, w := range m.names {
		got, ok := m.tr.names[nameKey{w.name.Namespace, key}]
		switch present := ok && !got.dropped; {
		case !clean:
			if present {
				m.names[key] = modelName{nameRecord: got}
			} else {
				m.names[key] = modelName{nameRecord: w.nameRecord, doubtful: true}
			}
		case w.doubtful:
		case !present && (w.dropped || w.weak):
		case !present:
			m.t.Errorf("name %q → %v is lost", key, w.id)
		case w.dropped || got.id != w.id || !sameName(got.name, w.name):
			m.t.Errorf("name %q → %v, %+v; want %+v", key, got.id, got.name, w)
		}
	}
}
