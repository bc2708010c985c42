package content

import (
	"context"

	"cascadekv/cascade/residency"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// mostNames bounds the names of a block that NamesOf lists, by the bytes that they take in a
// message: half of one. A name has more than nameHead besides its texts.
const (
	mostNames = 512 << 10
	nameHead  = 20
)

// NamesAt asks another rank for its names of a block.
func (l *Ledger) NamesAt(ctx context.Context, owner fabric.Rank, id block.ID) ([]block.Name, error) {
	p := l.peers()
	if p == nil || owner == p.Self() { // of an earlier life
		return nil, nil
	}
	return p.NamesOf(ctx, owner, id)
}

// NamesOf lists visible names of a block on this rank; of very many those that fit a message.
func NamesOf(s *residency.State, id block.ID) (list []block.Name) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	b := s.Mu.Blocks[id]
	if b == nil {
		return nil
	}
	bytes := 0
	for _, n := range b.Names() {
		if !n.Visible(s.Now) {
			continue
		}
		if bytes += len(n.Namespace()) + len(n.Key()) + nameHead; bytes > mostNames {
			break
		}
		list = append(list, block.Name{Namespace: n.Namespace(), Key: n.Key(), Seq: n.Put()})
	}
	return list
}
