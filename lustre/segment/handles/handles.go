package handles

import (
	"path/filepath"
	"sync"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
)

// Options configure a Cache. All are required.
type Options struct {
	FS       vfs.FS
	Dir      string
	Most     int           // files that are open, not counting those in use that were taken out
	KeepOpen time.Duration // for so long
	Tight    bool          // the process may open few files: one is closed before the next is opened
	Now      func() time.Time
	Close    func(vfs.File) // closes a file without waiting: that may hang
}

// Cache is the files that are open. All methods are safe for concurrent use.
type Cache struct {
	o  Options
	mu struct {
		sync.Mutex
		open    map[string]*Handle
		timer   *time.Timer // runs while open is not empty
		stopped bool
	}
}

// Handle is one open file, or the attempt to open it. Guarded by Cache.mu but for what
// once sets.
type Handle struct {
	path  string
	since time.Time
	users int
	gone  bool // no longer in the map: the last user closes it

	once sync.Once
	file vfs.File
	err  error
}

// New returns a cache without files.
func New(o Options) *Cache {
	c := &Cache{o: o}
	c.mu.open = map[string]*Handle{}
	return c
}

// File is the open file, for reading only.
func (h *Handle) File() vfs.File { return h.file }

// Path is where a file lies that has a path relative to the directory.
func (c *Cache) Path(path string) string { return filepath.Join(c.o.Dir, path) }

// Len returns how many files are open.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.open)
}

// Take returns the open file of a path, whose header must be that of the segment id, until
// Give. It may take as long as the file system. Errors: those of opening and reading the
// file, format.ErrBadFormat.
func (c *Cache) Take(path string, id format.FileID) (*Handle, error) {
	h := c.take(path)
	h.once.Do(func() { h.file, h.err = c.openSegment(path, id) })
	if h.err != nil {
		c.Give(h, true)
		return nil, h.err
	}
	return h, nil
}

func (c *Cache) openSegment(path string, id format.FileID) (vfs.File, error) {
	f, err := c.o.FS.Open(c.Path(path))
	if err != nil {
		return nil, err
	}
	page := make([]byte, format.PageSize)
	_, err = f.Pread(page, 0)
	if err == nil {
		err = format.CheckHeader(page, id)
	}
	if err != nil {
		c.o.Close(f)
		return nil, err
	}
	return f, nil
}

// take returns the handle of path, with a user counted.
func (c *Cache) take(path string) *Handle {
	now := c.o.Now()
	c.mu.Lock()
	var drop []*Handle
	h := c.mu.open[path]
	if h != nil && now.Sub(h.since) >= c.o.KeepOpen {
		drop = c.removeLocked(drop, h)
		h = nil
	}
	if h == nil {
		if len(c.mu.open) >= c.o.Most {
			drop = c.removeLocked(drop, c.oldestLocked(false))
		}
		h = &Handle{path: path, since: now}
		if h.gone = c.mu.stopped; !h.gone {
			c.mu.open[path] = h
			c.watchLocked()
		}
	}
	h.users++
	c.mu.Unlock()
	c.closeAll(drop, c.o.Tight) // what waits to be closed counts
	return h
}

// Give ends a use of h; one that failed is not used again.
func (c *Cache) Give(h *Handle, failed bool) {
	c.mu.Lock()
	h.users--
	var drop []*Handle
	if h.gone && h.users == 0 {
		drop = append(drop, h)
	} else if failed {
		drop = c.removeLocked(drop, h)
	}
	c.mu.Unlock()
	c.closeAll(drop, c.o.Tight)
}

// removeLocked takes h out of the map and adds it to drop if nobody uses it.
func (c *Cache) removeLocked(drop []*Handle, h *Handle) []*Handle {
	if h.gone {
		return drop
	}
	h.gone = true
	delete(c.mu.open, h.path)
	if h.users == 0 {
		drop = append(drop, h)
	}
	return drop
}

// oldestLocked returns the handle that was opened first, of all or of those that
// nobody uses: no other has less time left.
func (c *Cache) oldestLocked(idle bool) (oldest *Handle) {
	for _, h := range c.mu.open {
		if (oldest == nil || h.since.Before(oldest.since)) && !(idle && h.users > 0) {
			oldest = h
		}
	}
	return oldest
}

// CloseOldest closes the handle that was opened first of those that nobody uses,
// and reports whether there was one.
func (c *Cache) CloseOldest() bool {
	c.mu.Lock()
	var drop []*Handle
	if h := c.oldestLocked(true); h != nil {
		drop = c.removeLocked(drop, h)
	}
	c.mu.Unlock()
	c.closeAll(drop, true)
	return len(drop) > 0
}

// closeAll closes handles that nobody uses, and waits for that or does so in the
// background.
func (c *Cache) closeAll(drop []*Handle, wait bool) {
	for _, h := range drop {
		switch {
		case h.file == nil:
		case wait:
			_ = h.file.Close() // only read: its error means nothing
		default:
			c.o.Close(h.file)
		}
	}
}

func (c *Cache) watchLocked() {
	if c.mu.timer == nil {
		c.mu.timer = time.AfterFunc(c.o.KeepOpen, c.Sweep)
	}
}

// Sweep closes the handles whose time is up.
func (c *Cache) Sweep() {
	now := c.o.Now()
	c.mu.Lock()
	var drop []*Handle
	for _, h := range c.mu.open {
		if now.Sub(h.since) >= c.o.KeepOpen {
			drop = c.removeLocked(drop, h)
		}
	}
	c.mu.timer = nil
	if len(c.mu.open) > 0 && !c.mu.stopped {
		c.watchLocked()
	}
	c.mu.Unlock()
	c.closeAll(drop, false)
}

// Stop returns the files that nobody uses. Those in use are closed by their
// last user, and none is kept open from now on.
func (c *Cache) Stop() (files []vfs.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stopped = true
	if c.mu.timer != nil {
		c.mu.timer.Stop()
	}
	var drop []*Handle
	for _, h := range c.mu.open {
		drop = c.removeLocked(drop, h)
	}
	for _, h := range drop {
		if h.file != nil {
			files = append(files, h.file)
		}
	}
	return files
}
