package parttest

import (
	"strings"
	"sync"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
)

// Watcher records what it is called for. It implements residency.Watcher,
// others.Fetches and writeback.Space.
type Watcher struct {
	mu    sync.Mutex
	calls []string
}

func (w *Watcher) record(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

// Take returns the calls since the last Take, each as a verb and keys.
func (w *Watcher) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.calls
	w.calls = nil
	return calls
}

// EnqueuePublishLocked implements residency.Watcher.
func (w *Watcher) EnqueuePublishLocked(n *names.Name) { w.record("publish " + n.Key()) }

// EnqueuePublishAllLocked implements residency.Watcher. Of a block without names
// nothing is recorded.
func (w *Watcher) EnqueuePublishAllLocked(b *residency.Block) { w.all("publish all", b) }

// InvalidateLocked implements residency.Watcher.
func (w *Watcher) InvalidateLocked(id residency.NameID, _ uint64) { w.record("invalidate " + id.Key) }

// ShowLocked implements residency.Watcher.
func (w *Watcher) ShowLocked(n *names.Name) { w.record("show " + n.Key()) }

// ShowAllLocked implements residency.Watcher. Of a block without names nothing is
// recorded.
func (w *Watcher) ShowAllLocked(b *residency.Block) { w.all("show all", b) }

// HideLocked implements residency.Watcher.
func (w *Watcher) HideLocked(n *names.Name) { w.record("hide " + n.Key()) }

// NoteFullLocked implements residency.Watcher.
func (w *Watcher) NoteFullLocked() { w.record("full") }

// CataloguedLocked implements residency.Watcher.
func (w *Watcher) CataloguedLocked() { w.record("spills") }

// RestsLocked implements residency.Watcher.
func (w *Watcher) RestsLocked(block.Info) { w.record("rests") }

// InvalidateFetchLocked implements others.Fetches.
func (w *Watcher) InvalidateFetchLocked(id residency.NameID, _ uint64) {
	w.record("invalidate fetch " + id.Key)
}

// InvalidateFetchesLocked implements others.Fetches.
func (w *Watcher) InvalidateFetchesLocked(ns string, _ bool, _ uint64) {
	w.record("invalidate fetches " + ns)
}

// Shrink implements writeback.Space.
func (w *Watcher) Shrink() { w.record("shrink") }

// AcceptedLocked implements writeback.Space.
func (w *Watcher) AcceptedLocked() { w.record("accepted") }

func (w *Watcher) all(verb string, b *residency.Block) {
	if len(b.Names()) == 0 {
		return
	}
	for _, n := range b.Names() {
		verb += " " + n.Key()
	}
	w.record(verb)
}

// Only returns those of some calls that begin with one of the verbs.
func Only(calls []string, verbs ...string) (some []string) {
	for _, c := range calls {
		for _, v := range verbs {
			if strings.HasPrefix(c, v+" ") || c == v {
				some = append(some, c)
			}
		}
	}
	return some
}
