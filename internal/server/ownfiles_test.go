package server

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/need"
	"cascadekv/internal/resp"
	"cascadekv/internal/transfer"
	"cascadekv/tiers/memory"
	"cascadekv/tiers/shm"
)

// arenaAt returns a path of the rank's arena below /dev/shm.
func (r *rig) arenaAt() string {
	path := arenaPath(r.store)
	if !strings.HasPrefix(path, "/dev/shm/") {
		r.t.Skipf("%s is not below /dev/shm", path)
	}
	return path
}

// TestOwnFilesAreNoRegions: a rank refuses its own arena, that of another rank, and
// its shared index as regions, whatever leads to them, and goes on.
func TestOwnFilesAreNoRegions(t *testing.T) {
	r := newRig(t, 16<<20)
	arena := r.arenaAt()
	other := filepath.Join(filepath.Dir(arena), "other")
	if o, err := shm.Open(other, memory.MinBytes); err != nil {
		t.Fatal(err)
	} else {
		t.Cleanup(func() { o.Close() })
	}
	segment := filepath.Join(filepath.Dir(arena), "segment")
	if err := os.WriteFile(segment, []byte("CASCSEG\n and what follows"), 0o600); err != nil {
		t.Fatal(err)
	}
	hard := arena + "-hard"
	if err := os.Link(arena, hard); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(hard) })
	if err := r.client("unix").Set("k", []byte("value")); err != nil {
		t.Fatal(err)
	}

	for name, path := range map[string]string{"arena": arena, "hard link": hard, "another rank's": other, "segment": segment} {
		t.Run(name+" by path", func(t *testing.T) {
			if _, err := r.client("unix").Do("CASCADE.REGION", "PATH", path); err == nil || !strings.Contains(err.Error(), transfer.ErrOwnFile.Error()) {
				t.Errorf("error %v", err)
			}
		})
		t.Run(name+" by descriptor", func(t *testing.T) { r.refusesFD(t, path) })
	}
	t.Run("read-only descriptor, opened again", func(t *testing.T) {
		f, err := os.Open(arena)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r.refusesFD(t, fmt.Sprint("/proc/self/fd/", f.Fd()))
	})
	t.Run("bind mount", func(t *testing.T) {
		need.That(t, os.Geteuid() == 0, "the right to mount", "run this test as root")
		bound := filepath.Join(t.TempDir(), "bound")
		if err := os.WriteFile(bound, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := unix.Mount(arena, bound, "", unix.MS_BIND, "")
		need.That(t, err == nil, "the right to mount", "run this test where mounts are allowed")
		defer unix.Unmount(bound, unix.MNT_DETACH)
		r.refusesFD(t, bound)
	})
	t.Run("after its magic is damaged", func(t *testing.T) {
		f, err := os.OpenFile(arena, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("X"), 0); err != nil {
			t.Fatal(err)
		}
		r.refusesFD(t, arena)
		if _, err := f.WriteAt([]byte("C"), 0); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("what begins as a rank's file", func(t *testing.T) {
		for _, magic := range transfer.OwnMagics {
			fd := memfd(t, 4096)
			copy(mapped(t, fd, 4096), magic)
			r.refusesThis(t, fd)
		}
	})

	got := make([]byte, 5)
	if n, err := r.client("unix").Get("k", got); err != nil || !bytes.Equal(got[:n], []byte("value")) {
		t.Errorf("%q, %v", got, err)
	}
}

func (r *rig) refusesFD(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r.refusesThis(t, fd)
}

// refusesThis offers a descriptor as a region.
func (r *rig) refusesThis(t *testing.T, fd int) {
	t.Helper()
	s, client := r.connect()
	s.fds = []int{fd}
	_, err := client.Do("CASCADE.REGION", "FD")
	var said *resp.ServerError
	if !errors.As(err, &said) || !strings.Contains(err.Error(), transfer.ErrOwnFile.Error()) {
		t.Errorf("error %v", err)
	}
}
