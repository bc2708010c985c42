package guest

import "testing"

// TestSettle: a machine that is up passes what a boot ends with, however often,
// and one that has no file system mounted does not.
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
		if err := m.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantRun(t, m, "ls -A /mnt/lustre", 0, "")
	wantRun(t, m, "umount /mnt/lustre", 0, "")
	if err := m.settle(t.Context()); err == nil {
		t.Error("without a file system there is no room on it")
	}
}
