package lustretest

import (
	"fmt"
	"sync"
	"testing"

	"cascadekv/internal/vfs"
)

// liars are file systems that break the commit rule. A storm on one of them
// loses what it was promised when the power goes.
var liars = map[string]vfs.FS{
	"no-fsync":    noFsync{},
	"late-rename": &lateRename{open: map[string]vfs.File{}},
}

// noFsync says that files are durable and does nothing for it.
type noFsync struct{ vfs.OS }

type unsynced struct{ vfs.File }

// Create implements vfs.FS.
func (fs noFsync) Create(path string, perm uint32) (vfs.File, error) {
	f, err := fs.OS.Create(path, perm)
	if err != nil {
		return nil, err
	}
	return unsynced{f}, nil
}

// Sync implements vfs.File.
func (unsynced) Sync() error { return nil }

// lateRename syncs each file once before it gets its name. On this Lustre no
// later fsync of the file makes the name durable.
type lateRename struct {
	vfs.OS
	mu   sync.Mutex
	open map[string]vfs.File
}

// Create implements vfs.FS.
func (fs *lateRename) Create(path string, perm uint32) (vfs.File, error) {
	f, err := fs.OS.Create(path, perm)
	if err == nil {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.open[path] = f
	}
	return f, err
}

// Rename implements vfs.FS.
func (fs *lateRename) Rename(from, to string) error {
	fs.mu.Lock()
	f := fs.open[from]
	delete(fs.open, from)
	fs.mu.Unlock()
	if f != nil {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return fs.OS.Rename(from, to)
}

// TestPowerCutShowsLies: what TestPowerCut finds nothing of is found where the
// commit rule is broken.
func TestPowerCutShowsLies(t *testing.T) {
	t.Parallel()
	m := machine(t)
	for name := range liars {
		t.Run(name, func(t *testing.T) {
			const tries = 5 // the server may commit by itself a moment before the cut
			for i := range tries {
				c := newCampaign(t, fmt.Sprintf("/mnt/lustre/%s%d", name, i))
				r := begin(t, m.Run, c, i, "-file-system="+name)
				r.more(20, 0, "on a file system that lies")
				if err := m.Kill(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-r.ended
				if err := m.Up(t.Context()); err != nil {
					t.Fatal(err)
				}
				v := verify(t, m.Run, c)
				if len(v.Wrong) > 0 {
					t.Errorf("wrong blocks: %q", few(v.Wrong))
				}
				if len(v.Lost) > 0 {
					t.Logf("try %d: %v", i, &v)
					return
				}
			}
			t.Errorf("nothing was lost by %d cuts: the rig cannot see a broken commit rule", tries)
		})
	}
}
