package vfstest

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"cascadekv/internal/vfs"
)

// Trace is an FS that writes down every operation in the order in which they
// began, one line each, so that a test can compare the sequence with a golden
// one. It is safe for concurrent use. Make one with NewTrace.
type Trace struct {
	vfs.FS
	mu    sync.Mutex
	root  string
	lines []string
}

// NewTrace wraps fs. Paths are written relative to root.
func NewTrace(fs vfs.FS, root string) *Trace {
	t := &Trace{root: root}
	t.FS = vfs.Hooked(fs, vfs.Before(t.note))
	return t
}

// Take returns the operations since the last Take, one a line.
func (t *Trace) Take() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.Join(t.lines, "\n")
	t.lines = nil
	return s
}

func (t *Trace) note(c vfs.Call) (int64, error) {
	line := fmt.Sprintf("%s %s", c.Op, t.rel(c.Path))
	switch c.Op {
	case vfs.OpRename:
		line += " -> " + t.rel(c.To)
	case vfs.OpRead, vfs.OpWrite:
		line += fmt.Sprintf(" %d+%d", c.Off, c.Len)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	return 0, nil
}

func (t *Trace) rel(path string) string {
	if r, err := filepath.Rel(t.root, path); err == nil {
		return r
	}
	return path
}
