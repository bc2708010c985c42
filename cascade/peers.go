package cascade

import (
	"cascadekv/dht/directory"
)

// Join makes the store one of many: what it holds is published to peers, and what
// it misses is looked for there. It is called at most once, before the
// first request. Peers must stay usable until the store is closed.
func (s *Store) Join(p Peers) {
	s.state.Mu.Lock()
	s.others.JoinLocked(p)
	s.content.JoinLocked(p)
	s.index.SetFinalLocked()
	s.state.Mu.Unlock()
	Local{s}.Names(func(string, string) bool { return true }, func(st directory.Statement) { p.Publish(st) })
}
