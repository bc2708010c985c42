package cascade

import (
	"context"
	"testing"
	"time"
)

// patient is how long a put of a test waits for room: far longer than one write
// to the cold tier takes, also on a machine that is busy. A test that fills the
// memory gives up sooner by impatient.
const patient = 30 * time.Second

// impatient is for a put that is expected to find no room.
func impatient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
