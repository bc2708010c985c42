package guest

import (
	"strings"
	"testing"
	"time"
)

// TestSettle: a machine that is up passes what a boot ends with, however often;
// one whose servers take no objects does not, nor one with no file system mounted.
func TestSettle(t *testing.T) {
	m, err := equipment(t).NewMachine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.End(); err != nil {
			t.Error(err)
		}
	}()
	wantRun(t, m, "touch /mnt/lustre/.up", 0, "") // as a boot leaves it that fails half-way
	for range 2 {
		if err := m.settle(t.Context(), settleLimit); err != nil {
			t.Fatal(err)
		}
	}
	wantRun(t, m, "ls -A /mnt/lustre", 0, "")
	wantRun(t, m, "lctl set_param -n osp.*.max_create_count=0", 0, "")
	if err := m.settle(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "OST0001") {
		t.Errorf("servers that take no objects: %v", err)
	}
	wantRun(t, m, "umount /mnt/lustre", 0, "")
	if err := m.settle(t.Context(), settleLimit); err == nil {
		t.Error("without a file system there is no room on it")
	}
}
