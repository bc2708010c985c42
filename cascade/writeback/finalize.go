package writeback

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
)

const (
	// hashStep is hashed between two looks at whether requests came in:
	// about 40 µs of work.
	hashStep = 64 << 10

	// quietMost is how long the finalizer looks away when it found no quiet
	// several times, each time for twice as long: a look costs requests in
	// flight their place on the core.
	quietMost = 80 * time.Millisecond

	// idleNice is the niceness of the finalizer's thread, so that it yields
	// to other processes too: to the engine above all.
	idleNice = 19
)

// FinalizeInBackground computes the ids of acknowledged blocks while nothing
// else is going on.
func (w *Writer) FinalizeInBackground(ctx context.Context) {
	defer fault.Guard()()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, niceness and all
	// Without the right to it the finalizer runs at normal priority.
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), idleNice)
	for {
		b := w.nextPending()
		if b == nil {
			select {
			case <-w.state.Pending.Wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if !w.finalizeWhenQuiet(ctx, b) {
			return
		}
	}
}

func (w *Writer) nextPending() *residency.Block {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	return w.state.Pending.Pop()
}

// finalizeWhenQuiet hashes b piece by piece, only while there are no requests,
// and gives it its id; false when ctx ended. While it waits it holds nothing: a
// store that is never quiet must still be able to evict b, and the chain that
// leads to it.
func (w *Writer) finalizeWhenQuiet(ctx context.Context, b *residency.Block) bool {
	h := block.NewHasher(w.state.IDBits)
	for done := int64(0); done < b.Info.Size; {
		for pause := residency.QuietFor; !w.state.Activity.Quiet(); pause = min(2*pause, quietMost) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return false
			}
		}
		n, pending := w.hashWhileQuiet(h, b, done)
		if !pending {
			return true
		}
		done += n
		if ctx.Err() != nil {
			return false
		}
	}
	w.finalized(b, h.ID())
	return true
}

// hashWhileQuiet hashes the bytes of b from an offset on, up to the first
// request, and returns how many; false when b needs no id any more.
func (w *Writer) hashWhileQuiet(h *block.Hasher, b *residency.Block, from int64) (n int64, pending bool) {
	v := w.pinPending(b)
	if v == nil {
		return 0, false
	}
	defer v.Release()
	for left := v.Size() - from; left > 0 && w.state.Activity.Quiet(); {
		step := min(left, hashStep)
		if v.Hash(h, from+n, from+n+step) != nil {
			return 0, false // the id is computed when the block leaves
		}
		left -= step
		n += step
	}
	return n, true
}

func (w *Writer) pinPending(b *residency.Block) *residency.View {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	if !b.CountedPending {
		return nil
	}
	if v := w.state.PinNearLocked(b); v != nil {
		return v.Background()
	}
	return nil
}

// FinalizeID gives a viewed block its id now, if it has none: it is about to
// leave the rank.
func (w *Writer) FinalizeID(v *residency.View) {
	w.state.Mu.Lock()
	pending := v.Block().Info.ID.IsProvisional()
	w.state.Mu.Unlock()
	if h := block.NewHasher(w.state.IDBits); pending && v.Hash(h, 0, v.Size()) == nil {
		w.finalized(v.Block(), h.ID())
	}
}

// finalized gives b its id. If a block with that id is stored already, the two
// become one.
func (w *Writer) finalized(b *residency.Block, id residency.BlockID) {
	at := w.state.Cold.Own(id)[0]
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	if !b.Info.ID.IsProvisional() || w.state.Mu.Blocks[b.Info.ID] != b {
		return
	}
	if first := w.state.Mu.Blocks[id]; first != nil {
		w.mergeLocked(b, first)
		return
	}
	for t, m := range w.state.Mem {
		if b.In(t) {
			w.state.NoteLocked(m, m.Memory.Rename(b.Info.ID, id))
		}
	}
	delete(w.state.Mu.Blocks, b.Info.ID)
	b.Info.ID = id
	w.state.Mu.Blocks[id] = b
	w.state.PlacementChangedLocked(b)
	w.state.UpdatePoliciesLocked(b)
	w.state.Watch.ShowAllLocked(b) // its record may lie elsewhere
	if at != nil {
		w.state.Cold.RestLocked(b, at)
	}
}

// mergeLocked moves the names of b, just finalized, to the block first that has
// the same bytes. Where only b is in memory, first takes over b's place there.
func (w *Writer) mergeLocked(b, first *residency.Block) {
	first.Busy++
	first.Generated = first.Generated && b.Generated
	for t, m := range w.state.Mem {
		if !b.In(t) || first.In(t) {
			continue
		}
		if err := m.Memory.Rename(b.Info.ID, first.Info.ID); err != nil {
			w.state.NoteLocked(m, err)
			continue
		}
		w.state.LeaveLocked(b, m, false)
		w.state.EnterLocked(first, m)
	}
	for len(b.Names()) > 0 {
		n := b.Names()[0]
		w.state.Count.DuplicateLocked(n, first.IsAlias(n, n.Space().Name()))
		w.state.Mu.Names.Move(n, &first.Block)
		w.state.ApplyLocked()
		w.state.Leases.HoldOfLocked(n)
	}
	first.Busy--
	w.state.ForgetLocked(b)
}
