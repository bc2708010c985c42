package segment

import (
	"errors"
	"fmt"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// ErrBadItem is a mistake of the caller. All other errors are those of
// package tiers, wrapped with what happened to which block or file; one that
// matches tiers.ErrFull matches tiers.ErrUnavailable too.
var ErrBadItem = errors.New("segment: bad item")

func unavailable(what string, err error) error {
	return fmt.Errorf("lustre: %w: %s: %w", tiers.ErrUnavailable, what, err)
}

// unwritten is unavailable where something was not written, with ErrFull where that is for want of room.
func unwritten(what string, err error) error {
	if isFull(err) {
		return fmt.Errorf("lustre: %w: %w: %s: %w", tiers.ErrFull, tiers.ErrUnavailable, what, err)
	}
	return unavailable(what, err)
}

// isFull reports whether err means that there is no space or quota left.
func isFull(err error) bool {
	return errors.Is(err, vfs.ErrNoSpace) || errors.Is(err, vfs.ErrQuota)
}
