package segment

import (
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
)

// TestMergeGivesWayToPuts: while a put is under way a merge waits, until it has
// ended or for so long. The clock is the bubble's: it only moves while all wait.
func TestMergeGivesWayToPuts(t *testing.T) {
	const soon = mergeYield / 2
	for name, c := range map[string]struct {
		put      bool
		ends     time.Duration // after the merge has begun; 0: after the merge
		from, to time.Duration // that the merge takes
	}{
		"no put":             {false, 0, 0, 0},
		"a put that ends":    {true, soon, soon, soon + mergeStep},
		"a put that hangs":   {true, 0, mergeYield, mergeYield},
		"a put that is slow": {true, 2 * mergeYield, mergeYield, mergeYield},
	} {
		t.Run(name, func(t *testing.T) {
			o := small(t.TempDir(), 1)
			synctest.Test(t, func(t *testing.T) {
				fault := vfstest.NewFault(vfs.OS{})
				o.FS = fault
				s := openStore(t, o)
				kept := evictSome(t, s, populate(t, s, 30))
				settleDown(s)
				gate, ended := make(chan struct{}), make(chan error, 1)
				if c.put {
					fault.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: gate})
					go func() { ended <- s.Put(t.Context(), testItem(999, mergeSize)) }()
					synctest.Wait()
				}
				if c.ends > 0 {
					time.AfterFunc(c.ends, func() { close(gate) })
				}
				began := time.Now()
				m, err := s.Merge(t.Context(), 0, s.tell)
				if took := time.Since(began); err != nil || m.Blocks == 0 || took < c.from || took > c.to {
					t.Errorf("%+v, %v, after %v; want %v to %v", m, err, took, c.from, c.to)
				}
				if c.put && c.ends == 0 {
					close(gate)
				}
				if c.put {
					if err := <-ended; err != nil {
						t.Errorf("Put: %v", err)
					}
				}
				settleDown(s)
				wantBytes(t, s, kept...)
				closeStore(t, s)
			})
		})
	}
}
