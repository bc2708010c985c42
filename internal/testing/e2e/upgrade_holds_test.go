package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/shmindex"
)

// ownHolder is a client that holds blocks by itself, without asking.
type ownHolder struct {
	h     *holder
	view  *shmindex.Viewer
	views []shmindex.View
	want  [][]byte
}

// holdByItself has blocks held that stay, are replaced and are deleted.
func (h *holder) holdByItself(r *rank) *ownHolder {
	h.t.Helper()
	h.do("CASCADE.INDEX", "HOLDS")
	holds, err := shmindex.OpenHolds(memfdOf(h.t, r, "cascade-holds", unix.O_RDWR), 1<<30)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(holds.Close)
	o := &ownHolder{h: h, view: &shmindex.Viewer{Holds: holds, Arena: h.arena}}
	o.look(r)
	for i, size := range []int{100, 3000, 40 << 10, 300 << 10} {
		for _, fate := range []string{"stays", "replaced", "deleted"} {
			o.hold(fmt.Sprintf("own-%s-%d", fate, i), fate, size)
		}
	}
	o.check()
	return o
}

// look opens the index that the rank has now.
func (o *ownHolder) look(r *rank) {
	o.h.t.Helper()
	o.h.do("CASCADE.INDEX")
	fd := memfdOf(o.h.t, r, "cascade-index", unix.O_RDONLY)
	defer unix.Close(fd)
	index, err := shmindex.OpenReader(fd)
	if err != nil {
		o.h.t.Fatal(err)
	}
	o.h.t.Cleanup(index.Close)
	o.view.Index = index
}

func (o *ownHolder) hold(key, fate string, size int) {
	o.h.t.Helper()
	want := bytesOf(key, size)
	var view shmindex.View
	for tries, ok := 0, false; !ok; tries++ {
		if tries == 20 {
			o.h.t.Fatalf("%s can not be held", key)
		}
		o.h.do("SET", key, string(want))
		view, ok = o.view.View(shmindex.FingerprintOf(heldSpace, key)) // not while others make the rank move blocks together
	}
	o.views, o.want = append(o.views, view), append(o.want, want)
	switch fate {
	case "replaced":
		o.h.do("SET", key, "another value")
	case "deleted":
		o.h.do("DEL", key)
	}
}

func (o *ownHolder) check() {
	o.h.t.Helper()
	for i, v := range o.views {
		if !bytes.Equal(v.Bytes, o.want[i]) {
			o.h.t.Errorf("%d bytes at %d have changed while they were held", v.Size, v.Offset)
		}
	}
}

// upgraded tries that what was held still is, that the index of the program before
// is out of use, and that more can be held by the new one.
func (o *ownHolder) upgraded(r *rank, n int) {
	o.h.t.Helper()
	o.check()
	if _, ok := o.view.View(shmindex.FingerprintOf(heldSpace, "own-stays-0")); ok {
		o.h.t.Error("a block was held by the index of a program that is gone")
	}
	o.look(r)
	o.hold(fmt.Sprintf("own-after-%d", n), "replaced", 2000)
}

func (o *ownHolder) giveBack() {
	for _, v := range o.views {
		o.view.LetGo(v)
	}
}

// memfdOf opens the youngest memfd of a name that a rank has, as its own user may.
func memfdOf(t *testing.T, r *rank, name string, mode int) int {
	t.Helper()
	youngest := -1
	until(t, "memfd "+name, func() bool {
		youngest = youngestMemfd(t, fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid), name, mode)
		return youngest >= 0
	})
	return youngest
}

// youngestMemfd opens the memfd in a folder of descriptors, or returns -1. A rank
// opens its index once more for each client that asks, for the moment of the
// answer: such a descriptor may be gone, or be another file, when it is opened here.
func youngestMemfd(t *testing.T, dir, name string, mode int) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	is := func(path string) bool {
		to, _ := os.Readlink(path)
		return strings.HasPrefix(to, "/memfd:"+name)
	}
	found, made := -1, int64(-1)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !is(path) {
			continue
		}
		fd, err := unix.Open(path, mode|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if is(fmt.Sprintf("/proc/self/fd/%d", fd)) && unix.Fstat(fd, &st) == nil && st.Ctim.Nano() > made {
			fd, found, made = found, fd, st.Ctim.Nano()
		}
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return found
}

// TestMemfdWhileClientsAsk: the tests find the rank's index whatever other clients
// do. After an upgrade the rank has lower numbers to give than the index has.
func TestMemfdWhileClientsAsk(t *testing.T) {
	r := start(t, newPlace(t, "16MiB"))
	upgrade(t, r)
	l := newClients(t)
	for i := range 4 {
		c := r.dial(t)
		l.run(fmt.Sprint("client ", i), func(int) error {
			_, err := c.Do("CASCADE.INDEX")
			return err
		})
	}
	l.goesOn()
	for range 300 {
		unix.Close(memfdOf(t, r, "cascade-index", unix.O_RDONLY))
	}
	l.end()
}
