package writeback

import (
	"context"

	"cascadekv/cascade/residency"
)

// SyncInTurn is SyncCold for those without the cleaning token.
func (w *Writer) SyncInTurn(ctx context.Context) error {
	if err := residency.TakeSlot(ctx, w.cleaning); err != nil {
		return err
	}
	defer func() { <-w.cleaning }()
	return w.SyncCold(ctx)
}
