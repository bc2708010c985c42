package segment

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// openBelow counts the descriptors of this process for files below dir.
func openBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, d := range all {
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}

// TestMaxOpenFiles: a store with very many segments, of its own and of others,
// keeps no more of them open than it may, whatever way they are read, and every
// block is there: one by one, in batches, by place, from several readers at once,
// after a merge, and after a restart.
func TestMaxOpenFiles(t *testing.T) {
	const n, most = 120, 20
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.SegmentBlocks, o.MaxOpenFiles, o.Now = 1, most, time.Now
	s := openStore(t, o)
	var items []tiers.Item
	for i := range n {
		items = append(items, testItem(uint64(i+1), 9000))
		put(t, s, items[i])
		if open := openBelow(t, dir); open > most {
			t.Fatalf("%d files are open after %d puts", open, i+1)
		}
	}
	look := func(what string, s *opened) {
		t.Helper()
		wantBytes(t, s, items...)
		wantBatch(t, s, items, nil)
		far := readsOf(t, s, items)
		for i := range far { // by place
			p, err := s.Segment(items[i].Info.ID)
			must(t, err)
			far[i].Pin.Release()
			far[i] = tiers.Read{At: p, Info: items[i].Info, Dst: far[i].Dst}
		}
		for i, err := range s.ReadBatch(t.Context(), far) {
			if err != nil || !bytes.Equal(far[i].Dst, items[i].Data) {
				t.Errorf("%s: block %d by its place: %v", what, i, err)
			}
		}
		var readers sync.WaitGroup
		for k := range 8 {
			readers.Go(func() {
				for i := range items {
					if got, err := read(t.Context(), s, items[(i*(k+1)+k)%n]); err != nil {
						t.Errorf("%s: %v after %d bytes", what, err, len(got))
					}
				}
			})
		}
		most := most + most/2 // an operation that a busy machine delays for a second does not count
		for range 50 {
			if open := openBelow(t, dir); open > most {
				t.Errorf("%s: %d files are open", what, open)
				most = open
			}
			time.Sleep(time.Millisecond)
		}
		readers.Wait()
	}
	look("written", s)
	for i := range n / 2 {
		must(t, s.Evict(items[2*i].Info.ID))
	}
	items = slices.DeleteFunc(items, s.missing)
	for range 5 {
		if _, err := s.Merge(t.Context(), 0, s.tell); err != nil {
			t.Fatal(err)
		}
	}
	wantBytes(t, s, items...)
	closeStore(t, s)
	o.Incarnation = 2
	s = openStore(t, o)
	wantBytes(t, s, items...)
	if open := openBelow(t, dir); open > most {
		t.Errorf("%d files are open after a restart", open)
	}
}

func (o *opened) missing(it tiers.Item) bool {
	_, err := o.Segment(it.Info.ID)
	return err != nil
}

// TestNoDescriptors: with no bound of its own, a store that the process lets open
// no more closes what is idle, and neither loses a put nor misses a block.
func TestNoDescriptors(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	limited := &fewDescriptors{FS: vfs.OS{}, most: 10}
	o.FS, o.SegmentBlocks, o.Now = limited, 1, time.Now
	s := openStore(t, o)
	var items []tiers.Item
	for i := range 60 {
		items = append(items, testItem(uint64(i+1), 9000))
		put(t, s, items[i])
	}
	wantBytes(t, s, items...)
	wantBatch(t, s, items, nil)
	limited.mu.Lock()
	refused := limited.refused
	limited.mu.Unlock()
	if refused == 0 {
		t.Error("the limit was not met")
	}
	closeStore(t, s)
	o.Incarnation = 2
	s = openStore(t, o)
	wantBytes(t, s, items...)
	if h := s.Health(); h.Poisoned > 0 || len(s.Skipped()) > 0 {
		t.Errorf("%+v, skipped %v", h, s.Skipped())
	}
}

// fewDescriptors is a file system of which so many files can be open.
type fewDescriptors struct {
	vfs.FS
	most int

	mu            sync.Mutex
	open, refused int
}

type fewFile struct {
	vfs.File
	fs *fewDescriptors
}

func (l *fewDescriptors) one(path string, open func() (vfs.File, error)) (vfs.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == l.most {
		l.refused++
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.EMFILE}
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	l.open++
	return fewFile{f, l}, nil
}

func (l *fewDescriptors) Create(path string, perm uint32) (vfs.File, error) {
	return l.one(path, func() (vfs.File, error) { return l.FS.Create(path, perm) })
}

func (l *fewDescriptors) Open(path string) (vfs.File, error) {
	return l.one(path, func() (vfs.File, error) { return l.FS.Open(path) })
}

func (f fewFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.open--
	return f.File.Close()
}

// Stat implements vfs.Stater.
func (f fewFile) Stat() (vfs.Stat, error) { return vfs.StatOf(f.File) }

// TestReopenedFileIsTheSame: what lies in the place of a segment when it is opened
// again is that segment, or its blocks are gone.
func TestReopenedFileIsTheSame(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.SegmentBlocks = 1
	s := openStore(t, o)
	copied, swapped := testItem(1, 9000), testItem(2, 9000)
	put(t, s, copied, testItem(5, 9000))
	put(t, s, swapped)
	put(t, s, testItem(3, 9000))
	for s.closeIdle() {
	}
	path := func(it tiers.Item) string { p, _ := s.where(t, it.Info.ID); return p }
	other := path(swapped)
	p := readFile(t, path(copied))
	for _, to := range []string{path(copied), other} {
		must(t, errors.Join(os.WriteFile(to+".new", p, 0o600), os.Rename(to+".new", to)))
	}
	wantBytes(t, s, copied)
	_, err := read(t.Context(), s, swapped)
	wantErr(t, "read of a file that another took the place of", err, tiers.ErrUnavailable)
	_, err = read(t.Context(), s, swapped)
	wantErr(t, "read after that", err, tiers.ErrNotFound)
	if _, err := os.Stat(filepath.Dir(other)); err != nil {
		t.Error(err)
	}
}
