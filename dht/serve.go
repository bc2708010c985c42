package dht

import (
	"context"
	"fmt"
	"slices"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// server answers other ranks for a node.
type server struct{ n *Node }

// Hold implements fabric.Handler.
func (s server) Hold(src fabric.Source) (fabric.Hold, error) {
	h, err := s.n.local.Hold(src)
	if err == nil {
		s.n.stats.served.Add(1)
		s.n.stats.servedBytes.Add(uint64(src.Length))
	}
	return h, err
}

// quickBytes is up to how many bytes of request are answered at once: a long list
// holds up what else the same rank asks.
const quickBytes = 16 << 10

// Quick implements fabric.QuickHandler.
func (s server) Quick(req []byte) bool {
	k, _, err := split(req)
	if err != nil || len(req) > quickBytes {
		return false
	}
	switch k {
	case kindAnnounce, kindLocate, kindWhere, kindDrop, kindTouch, kindInvalidate, kindPing:
		return true
	}
	return false
}

// Answer implements fabric.Handler.
func (s server) Answer(ctx context.Context, from fabric.Rank, req []byte) ([]byte, error) {
	k, body, err := split(req)
	if err != nil {
		return nil, err
	}
	switch k {
	case kindAnnounce:
		return s.announce(from, body)
	case kindLocate:
		return s.locate(body)
	case kindWhere:
		return s.where(body)
	case kindDelete:
		return s.delete(ctx, body)
	case kindEntrust, kindGive:
		return s.entrust(ctx, k, body)
	case kindNames:
		return s.names(body)
	case kindStatus:
		return s.n.report(), nil
	case kindPing:
		return nil, nil
	case kindResync:
		s.n.resync(from)
		return nil, nil
	case kindExpire:
		return nil, s.expire(ctx, body)
	case kindDrop, kindTouch, kindInvalidate, kindClear, kindCleared:
		return nil, s.notify(k, body)
	}
	return nil, fmt.Errorf("%w: kind %d", errBadMessage, k)
}

// announce applies statements and answers with those of the speaker that are out of
// date. Names that this rank is no home of it answers with 0: it would not hear of their
// changes, and with the next change of the ring it might come to be a home. What was
// cleared is out of date.
func (s server) announce(from fabric.Rank, body []byte) ([]byte, error) {
	var batch statements
	if err := decode(body, &batch); err != nil {
		return nil, err
	}
	for i := range batch {
		if batch[i].Name.Key == "" {
			return nil, fmt.Errorf("%w: a statement about no name", errBadMessage)
		}
	}
	v := s.n.view.Load()
	mine := stales{}
	var others []directory.Stale
	now := s.n.o.Now()
	for _, st := range batch {
		if !slices.Contains(v.everyHome(st.Name.Namespace, st.Name.Key, now), s.n.self) {
			mine = append(mine, staleMessage{st.Name.Namespace, st.Name.Key, 0})
			continue
		}
		if before := s.n.clearings.before(st.Name.Namespace); st.Has() && st.Name.Seq < before {
			if st.Owner == from {
				mine = append(mine, staleMessage{st.Name.Namespace, st.Name.Key, before})
			}
			continue
		}
		if st.Owner != from && v.dead(st.Owner, st.Incarnation) {
			st.Memory = nil // handed on by a rank that has not heard of it yet
		}
		for _, stale := range s.n.dir.Apply(st, now) {
			if stale.Owner == from {
				mine = append(mine, staleMessage{stale.Namespace, stale.Key, stale.Before})
			} else {
				others = append(others, stale)
			}
		}
	}
	s.n.deliver(others)
	return reply(&mine)
}

func (s server) locate(body []byte) ([]byte, error) {
	var m keysMessage
	if err := decode(body, &m); err != nil {
		return nil, err
	}
	if len(m.Keys) > locateKeys {
		return nil, fmt.Errorf("%w: %d keys in one question, at most %d", errBadMessage, len(m.Keys), locateKeys)
	}
	copies := make(copiesMessage, len(m.Keys))
	now := s.n.o.Now()
	for i, k := range m.Keys {
		f, ok := s.n.dir.Lookup(m.Namespace, k, now)
		if !ok {
			continue
		}
		copies[i] = f.Copies
		for c := range copies[i] {
			copies[i][c].Name.Namespace, copies[i][c].Name.Key = "", ""
		}
	}
	return reply(&copies)
}

func (s server) where(body []byte) ([]byte, error) {
	var m keysMessage
	if err := decode(body, &m); err != nil {
		return nil, err
	}
	if len(m.Keys) != 1 {
		return nil, fmt.Errorf("%w: %d keys, want 1", errBadMessage, len(m.Keys))
	}
	st := s.n.local.State(m.Namespace, m.Keys[0])
	st.Owner, st.Incarnation = s.n.self, s.n.o.Incarnation
	return reply(&st)
}

func (s server) delete(ctx context.Context, body []byte) ([]byte, error) {
	var m stampMessage
	if err := decode(body, &m); err != nil {
		return nil, err
	}
	if m.Key == "" {
		return nil, fmt.Errorf("%w: no name to delete", errBadMessage)
	}
	s.n.deleteHere(ctx, &m)
	return nil, nil
}

func (s server) entrust(ctx context.Context, k kind, body []byte) ([]byte, error) {
	var list statements
	if err := decode(body, &list); err != nil {
		return nil, err
	}
	if k == kindEntrust {
		for i := range list {
			list[i].Version = 0
		}
	}
	// Whoever asks waits for the answer: that it may take longer to make names durable is no
	// reason to suspect this rank.
	ctx, cancel := context.WithTimeout(ctx, s.n.o.CallDeadline/2)
	defer cancel()
	refused := stales{}
	for _, i := range s.n.local.Entrust(ctx, list) {
		refused = append(refused, staleMessage{list[i].Name.Namespace, list[i].Name.Key, list[i].Name.Seq})
	}
	return reply(&refused)
}

func (s server) expire(ctx context.Context, body []byte) error {
	var m stampMessage
	if err := decode(body, &m); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.n.o.CallDeadline/2) // as entrust
	defer cancel()
	if !s.n.local.Expires(ctx, m.Namespace, m.Key, m.end()) {
		return errNoName
	}
	return nil
}

func (s server) names(body []byte) ([]byte, error) {
	var m keysMessage
	if err := decode(body, &m); err != nil {
		return nil, err
	}
	if m.Namespace != directory.Contents || len(m.Keys) != 1 {
		return nil, fmt.Errorf("%w: a question about %d ids, want 1", errBadMessage, len(m.Keys))
	}
	id, ok := directory.ContentID(m.Keys[0])
	if !ok {
		return nil, fmt.Errorf("%w: no id", errBadMessage)
	}
	list := stales{}
	for _, n := range s.n.local.NamesOf(id) {
		list = append(list, staleMessage{n.Namespace, n.Key, n.Seq})
	}
	return reply(&list)
}

// notify handles what needs no answer but that it arrived.
func (s server) notify(k kind, body []byte) error {
	switch k {
	case kindDrop:
		return with(body, func(m *stales) { s.n.outdated(*m) })
	case kindTouch:
		return with(body, func(m *keysMessage) { s.n.local.Touched(m.Namespace, m.Keys) })
	case kindInvalidate:
		return with(body, func(m *directory.Statement) { s.n.dir.Invalidate(*m) })
	case kindClear:
		return with(body, func(m *clearMessage) { s.n.clearHere(*m) })
	case kindCleared:
		return with(body, func(m *clearedMessage) { wasCleared(s.n, *m) })
	}
	return nil
}

// with calls do with what body has.
func with[T any](body []byte, do func(*T)) error {
	m := new(T)
	err := decode(body, m)
	if err == nil {
		do(m)
	}
	return err
}
