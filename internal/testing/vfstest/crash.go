package vfstest

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cascadekv/internal/vfs"
)

// crashPage is the unit in which a Crash loses data.
const crashPage = 4096

// Crash is a file system in memory that loses at a power cut what a real Lustre
// was seen to lose:
//
//   - Sync makes the bytes and the length of a file durable. Without it each page
//     may be there, be as it was before, be torn, or be zero, and the file may be
//     of any length up to its own.
//   - Names are made, changed and removed in one journal. It becomes durable
//     in order, by itself at any moment, and as a whole by the first Sync of a
//     file after that was made or its attributes were set. No later Sync of
//     the file does that, and there is no fsync of directories.
//   - So a file that was written and synced, and then renamed, can be back
//     under its old name, and a removed file can be back.
//
// After is what is found after the end of a process, a node or everything;
// Evict is what a server does to a client that it has lost. Room is without
// limit, and no operation fails: put a Fault around it for that. Permissions
// are not kept. A Crash is safe for concurrent use.
type Crash struct {
	mu      sync.Mutex
	live    map[string]*inode // what programs see
	durable map[string]*inode // what no power cut takes away
	journal []change          // what leads from durable to live, in order
	handles int
}

// change is one operation on names.
type change struct {
	path string
	node *inode // nil: the name goes
	from string // of a rename: the name that goes with it
}

// inode is one file or directory. Pages are never changed in place, so that
// copies of a Crash share them.
type inode struct {
	dir    bool
	asked  bool // a Sync has reached the metadata server
	size   int64
	pages  map[int64][]byte
	stable content            // as of the last Sync
	dirty  map[int64][][]byte // what a page has been since, in order
	lost   error              // the error of the next Sync, once
}

// content is what a file holds; absent pages are zero.
type content struct {
	size  int64
	pages map[int64][]byte
}

type crashFile struct {
	c      *Crash
	n      *inode
	path   string
	reader bool
	closed bool
}

// NewCrash returns an empty file system: the directory "/".
func NewCrash() *Crash {
	root := map[string]*inode{"/": {dir: true}}
	return &Crash{live: root, durable: maps.Clone(root)}
}

// Watch returns c as an FS that calls fn before each operation, on the
// goroutine of its caller. fn may call After.
func (c *Crash) Watch(fn func(vfs.Call)) vfs.FS {
	return vfs.Hooked(c, func(call vfs.Call, do func(int64) error) error {
		fn(call)
		return do(call.Len)
	})
}

// Handles returns how many files are open.
func (c *Crash) Handles() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handles
}

// Files returns the paths of all files, without directories, in lexical order.
func (c *Crash) Files() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for path, n := range c.live {
		if !n.dir {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

func (ch change) apply(tree map[string]*inode) {
	if ch.from != "" {
		delete(tree, ch.from)
	}
	if ch.node == nil {
		delete(tree, ch.path)
	} else {
		tree[ch.path] = ch.node
	}
}

func (c *Crash) change(ch change) {
	ch.apply(c.live)
	c.journal = append(c.journal, ch)
}

// lookup returns what is at path and whether it can be there: its directory is.
func (c *Crash) lookup(path string) (clean string, n *inode, possible bool) {
	clean = filepath.Clean(path)
	parent := c.live[filepath.Dir(clean)]
	return clean, c.live[clean], parent != nil && parent.dir
}

// add makes what is new at path.
func (c *Crash) add(op, path string, n *inode) (string, error) {
	clean, old, possible := c.lookup(path)
	switch {
	case old != nil:
		return "", &os.PathError{Op: op, Path: path, Err: unix.EEXIST}
	case !possible:
		return "", &os.PathError{Op: op, Path: path, Err: unix.ENOENT}
	}
	c.change(change{path: clean, node: n})
	return clean, nil
}

// file returns the file at path.
func (c *Crash) file(op, path string) (string, *inode, error) {
	clean, n, _ := c.lookup(path)
	switch {
	case n == nil:
		return "", nil, &os.PathError{Op: op, Path: path, Err: unix.ENOENT}
	case n.dir:
		return "", nil, &os.PathError{Op: op, Path: path, Err: unix.EISDIR}
	}
	return clean, n, nil
}

// Create implements FS.
func (c *Crash) Create(path string, _ uint32) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &inode{pages: map[int64][]byte{}, dirty: map[int64][][]byte{}, stable: content{pages: map[int64][]byte{}}}
	clean, err := c.add("open", path, n)
	if err != nil {
		return nil, err
	}
	c.handles++
	return &crashFile{c: c, n: n, path: clean}, nil
}

// Open implements FS.
func (c *Crash) Open(path string) (vfs.File, error) { return c.open(path, true) }

// Reopen implements FS.
func (c *Crash) Reopen(path string) (vfs.File, error) { return c.open(path, false) }

func (c *Crash) open(path string, reader bool) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean, n, err := c.file("open", path)
	if err != nil {
		return nil, err
	}
	c.handles++
	return &crashFile{c: c, n: n, path: clean, reader: reader}, nil
}

// Rename implements FS.
func (c *Crash) Rename(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean, n, err := c.file("rename", from)
	if err != nil {
		return err
	}
	target, old, _ := c.lookup(to)
	switch {
	case filepath.Dir(target) != filepath.Dir(clean):
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: unix.EXDEV}
	case old != nil && old.dir:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: unix.EISDIR}
	}
	c.change(change{path: target, node: n, from: clean})
	return nil
}

// Remove implements FS.
func (c *Crash) Remove(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean, _, err := c.file("unlink", path)
	if err == nil {
		c.change(change{path: clean})
	}
	return err
}

// Mkdir implements FS.
func (c *Crash) Mkdir(path string, _ uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.add("mkdir", path, &inode{dir: true})
	return err
}

// Rmdir implements FS.
func (c *Crash) Rmdir(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean, n, _ := c.lookup(path)
	switch {
	case n == nil:
		return &os.PathError{Op: "rmdir", Path: path, Err: unix.ENOENT}
	case !n.dir:
		return &os.PathError{Op: "rmdir", Path: path, Err: unix.ENOTDIR}
	}
	for p := range c.live {
		if p != clean && filepath.Dir(p) == clean {
			return &os.PathError{Op: "rmdir", Path: path, Err: unix.ENOTEMPTY}
		}
	}
	c.change(change{path: clean})
	return nil
}

// ReadDir implements FS.
func (c *Crash) ReadDir(path string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean, n, _ := c.lookup(path)
	if n == nil || !n.dir {
		return nil, &os.PathError{Op: "readdir", Path: path, Err: unix.ENOENT}
	}
	var names []string
	for p := range c.live {
		if p != clean && filepath.Dir(p) == clean {
			names = append(names, filepath.Base(p))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Statfs implements FS: half of a TiB is free, of no known type.
func (c *Crash) Statfs(string) (vfs.Space, error) {
	return vfs.Space{Total: 1 << 40, Free: 1 << 39}, nil
}

// Pread implements File.
func (f *crashFile) Pread(p []byte, off int64) (int, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return 0, &os.PathError{Op: "pread", Path: f.path, Err: unix.EBADF}
	}
	n := 0
	for n < len(p) && off+int64(n) < f.n.size {
		at := off + int64(n)
		part := p[n:min(len(p), n+int(min(crashPage-at%crashPage, f.n.size-at)))]
		if page := f.n.pages[at/crashPage]; page != nil {
			copy(part, page[at%crashPage:])
		} else {
			clear(part)
		}
		n += len(part)
	}
	if n < len(p) {
		return n, &os.PathError{Op: "pread", Path: f.path, Err: io.ErrUnexpectedEOF}
	}
	return n, nil
}

// Pwrite implements File.
func (f *crashFile) Pwrite(p []byte, off int64) (int, error) {
	n, err := f.Pwritev([][]byte{p}, off)
	return int(n), err
}

// Pwritev implements File.
func (f *crashFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed || f.reader {
		return 0, &os.PathError{Op: "pwritev", Path: f.path, Err: unix.EBADF}
	}
	all := slices.Concat(bufs...)
	for n := 0; n < len(all); {
		n += f.n.store(all[n:], off+int64(n))
	}
	return int64(len(all)), nil
}

// store writes what of p lies on the page of off.
func (n *inode) store(p []byte, off int64) int {
	page := make([]byte, crashPage)
	copy(page, n.pages[off/crashPage])
	k := copy(page[off%crashPage:], p)
	n.pages[off/crashPage] = page
	n.dirty[off/crashPage] = append(slices.Clip(n.dirty[off/crashPage]), page)
	n.size = max(n.size, off+int64(k))
	return k
}

// Sync implements File.
func (f *crashFile) Sync() error { return f.sync(true) }

// sync is fsync, or without names fdatasync, which does not ask the metadata
// server.
func (f *crashFile) sync(names bool) error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return &os.PathError{Op: "fsync", Path: f.path, Err: unix.EBADF}
	}
	if err := f.n.lost; err != nil {
		f.n.lost = nil
		return &os.PathError{Op: "fsync", Path: f.path, Err: err}
	}
	f.n.settle()
	if names && !f.n.asked {
		f.n.asked = true
		for _, ch := range f.c.journal {
			ch.apply(f.c.durable)
		}
		f.c.journal = nil
	}
	return nil
}

// chmod sets attributes, which makes the next Sync ask the metadata server.
func (f *crashFile) chmod() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.n.asked = false
}

// settle makes what n holds durable.
func (n *inode) settle() {
	if len(n.dirty) > 0 || n.stable.size != n.size {
		n.stable = content{n.size, maps.Clone(n.pages)}
		clear(n.dirty)
	}
}

// Size implements File.
func (f *crashFile) Size() (int64, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return 0, &os.PathError{Op: "fstat", Path: f.path, Err: unix.EBADF}
	}
	return f.n.size, nil
}

// Close implements File.
func (f *crashFile) Close() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return &os.PathError{Op: "close", Path: f.path, Err: unix.EBADF}
	}
	f.closed = true
	f.c.handles--
	return nil
}
