package cascade

import (
	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
)

// watcher passes on what a lower part of the store reports to those above it.
type watcher struct{ s *Store }

func (w watcher) EnqueuePublishLocked(n *names.Name) { w.s.others.EnqueuePublishLocked(n) }
func (w watcher) EnqueuePublishAllLocked(b *residency.Block) {
	w.s.others.EnqueuePublishAllLocked(b)
	w.s.content.PlacedLocked(b)
}
func (w watcher) RestsLocked(info block.Info) { w.s.content.RestsLocked(info) }
func (w watcher) InvalidateLocked(id residency.NameID, below uint64) {
	w.s.others.InvalidateLocked(id, below)
}
func (w watcher) InvalidateFetchLocked(id residency.NameID, below uint64) {
	w.s.load.InvalidateFetchLocked(id, below)
}
func (w watcher) InvalidateFetchesLocked(ns string, all bool, before uint64) {
	w.s.load.InvalidateFetchesLocked(ns, all, before)
}
func (w watcher) ShowLocked(n *names.Name)         { w.s.index.ShowLocked(n) }
func (w watcher) ShowAllLocked(b *residency.Block) { w.s.index.ShowAllLocked(b) }
func (w watcher) HideLocked(n *names.Name)         { w.s.index.HideLocked(n) }
func (w watcher) NoteFullLocked()                  { w.s.space.NoteFullLocked() }
func (w watcher) Shrink()                          { w.s.space.Shrink() }
func (w watcher) AcceptedLocked()                  { w.s.space.AcceptedLocked() }

func (w watcher) CataloguedLocked() {
	w.s.others.HasParts.Store(true)
	w.s.index.SetFinalLocked()
}
