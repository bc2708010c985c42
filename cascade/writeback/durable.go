package writeback

import (
	"context"
	"time"

	"cascadekv/cascade/residency"
)

// syncEvery is how long names, and withdrawals of names, may wait for the cold
// tier to make them durable: what a kill -9 can undo.
const syncEvery = time.Second

func (w *Writer) syncWanted() bool {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	return w.state.Mu.Writes.SyncRequested && w.state.Mu.Writes.LinkSeq > w.state.Mu.Writes.SyncedSeq
}

func (w *Writer) namesWait() bool {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	return w.state.Mu.Writes.LinkSeq > w.state.Mu.Writes.SyncedSeq
}

// syncOrLater syncs the cold tier and returns when to try again, nil for no
// need to.
func (w *Writer) syncOrLater(ctx context.Context) <-chan time.Time {
	if w.writing.Take(ctx) != nil {
		return nil
	}
	defer w.writing.Give()
	if err := w.SyncCold(ctx); err != nil && ctx.Err() == nil {
		w.leaveAlone(err)
		return time.After(residency.ColdRetry)
	}
	return nil
}

// SyncCold makes durable the changes of names that the cold tier has been given. The caller holds
// the token to write.
func (w *Writer) SyncCold(ctx context.Context) error {
	w.state.Mu.Lock()
	upTo, waited := w.state.Mu.Writes.LinkSeq, w.state.Mu.Writes.LinkSeq > w.state.Mu.Writes.SyncedSeq
	w.state.Mu.Writes.SyncRequested = false
	w.state.Mu.Unlock()
	if !waited {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	err := w.state.Cold.Files.Sync(ctx)
	w.noteReadOnly()
	if err != nil {
		return err
	}
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	w.state.Mu.Writes.SyncedSeq = upTo
	w.state.WakeWaitersLocked()
	return nil
}

// SyncInTurn is SyncCold for those without the token to write.
func (w *Writer) SyncInTurn(ctx context.Context) error {
	if err := w.writing.Take(ctx); err != nil {
		return err
	}
	defer w.writing.Give()
	return w.SyncCold(ctx)
}
