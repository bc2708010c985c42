package cascade

import (
	"cascadekv/cascade/events"
)

// Events returns the log of what became readable here, and of what no longer is.
// Names that are bound to another have no events: they are readable as that one
// is. An expired name is removed by Sweep. Nothing is kept before the first call of
// Since.
func (s *Store) Events() *events.Log { return s.state.Events }
