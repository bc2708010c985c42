package segment

import (
	"path/filepath"
	"sync"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
)

// handles keeps files open between reads by place, a bounded number of them
// for a bounded time: a file that its owner has unlinked takes space until the
// last descriptor is closed.
type handles struct {
	opt   Options
	close func(vfs.File) // outside any lock: it may hang

	mu      sync.Mutex
	open    map[string]*handle
	timer   *time.Timer // runs while open is not empty
	stopped bool
}

// handle is one open file, or the attempt to open it. Guarded by handles.mu but
// for what once sets.
type handle struct {
	path  string
	since time.Time
	users int
	gone  bool // no longer in the map: the last user closes it

	once sync.Once
	file vfs.File
	err  error
}

func (c *handles) openSegment(path string, id format.FileID) (vfs.File, error) {
	f, err := c.opt.FS.Open(filepath.Join(c.opt.Dir, path))
	if err != nil {
		return nil, err
	}
	page := make([]byte, format.PageSize)
	_, err = f.Pread(page, 0)
	if err == nil {
		err = format.CheckHeader(page, id)
	}
	if err != nil {
		c.close(f)
		return nil, err
	}
	return f, nil
}

// take returns the handle of path, with a user counted. It may take as long as the
// file system where the number of open files is bounded.
func (c *handles) take(path string) *handle {
	now := c.opt.Now()
	c.mu.Lock()
	var drop []*handle
	h := c.open[path]
	if h != nil && now.Sub(h.since) >= c.opt.KeepOpen {
		drop = c.removeLocked(drop, h)
		h = nil
	}
	if h == nil {
		if len(c.open) >= c.opt.OpenFiles {
			drop = c.removeLocked(drop, c.oldestLocked(false))
		}
		h = &handle{path: path, since: now}
		if h.gone = c.stopped; !h.gone {
			c.open[path] = h
			c.watchLocked()
		}
	}
	h.users++
	c.mu.Unlock()
	c.closeAll(drop, c.opt.MaxOpenFiles > 0) // what waits to be closed counts
	return h
}

// give ends a use of h; one that failed is not used again.
func (c *handles) give(h *handle, failed bool) {
	c.mu.Lock()
	h.users--
	var drop []*handle
	if h.gone && h.users == 0 {
		drop = append(drop, h)
	} else if failed {
		drop = c.removeLocked(drop, h)
	}
	c.mu.Unlock()
	c.closeAll(drop, c.opt.MaxOpenFiles > 0)
}

// removeLocked takes h out of the map and adds it to drop if nobody uses it.
func (c *handles) removeLocked(drop []*handle, h *handle) []*handle {
	if h.gone {
		return drop
	}
	h.gone = true
	delete(c.open, h.path)
	if h.users == 0 {
		drop = append(drop, h)
	}
	return drop
}

// oldestLocked returns the handle that was opened first, of all or of those that
// nobody uses: no other has less time left.
func (c *handles) oldestLocked(idle bool) (oldest *handle) {
	for _, h := range c.open {
		if (oldest == nil || h.since.Before(oldest.since)) && !(idle && h.users > 0) {
			oldest = h
		}
	}
	return oldest
}

// closeOldest closes the handle that was opened first of those that nobody uses,
// and reports whether there was one.
func (c *handles) closeOldest() bool {
	c.mu.Lock()
	var drop []*handle
	if h := c.oldestLocked(true); h != nil {
		drop = c.removeLocked(drop, h)
	}
	c.mu.Unlock()
	c.closeAll(drop, true)
	return len(drop) > 0
}

// closeAll closes handles that nobody uses, and waits for that or does so in the
// background.
func (c *handles) closeAll(drop []*handle, wait bool) {
	for _, h := range drop {
		switch {
		case h.file == nil:
		case wait:
			_ = h.file.Close() // only read: its error means nothing
		default:
			c.close(h.file)
		}
	}
}

func (c *handles) watchLocked() {
	if c.timer == nil {
		c.timer = time.AfterFunc(c.opt.KeepOpen, c.sweep)
	}
}

// sweep closes the handles whose time is up.
func (c *handles) sweep() {
	now := c.opt.Now()
	c.mu.Lock()
	var drop []*handle
	for _, h := range c.open {
		if now.Sub(h.since) >= c.opt.KeepOpen {
			drop = c.removeLocked(drop, h)
		}
	}
	c.timer = nil
	if len(c.open) > 0 && !c.stopped {
		c.watchLocked()
	}
	c.mu.Unlock()
	c.closeAll(drop, false)
}

// stop returns the files that nobody uses. Those in use are closed by their
// last user, and none is kept open from now on.
func (c *handles) stop() (files []vfs.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
	var drop []*handle
	for _, h := range c.open {
		drop = c.removeLocked(drop, h)
	}
	for _, h := range drop {
		if h.file != nil {
			files = append(files, h.file)
		}
	}
	return files
}
