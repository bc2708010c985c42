package vfstest

import (
	"context"
	"os"
	"strings"
	"sync"

	"cascadekv/internal/vfs"
)

// Rule makes operations of a Fault go wrong.
type Rule struct {
	Op    vfs.Op        // which operation; "" means any
	Path  string        // part of the path; "" matches any
	After int           // matching operations that still succeed
	Count int           // then how many the rule hits; 0 means all
	Bytes int64         // of a read or write: bytes that go through before Err
	Err   error         // nil: the operation goes ahead once Block is closed
	Block chan struct{} // wait until it is closed, when not nil

	seen int
}

// Fault is an FS whose operations fail or hang by rule. It is safe for
// concurrent use. Make one with NewFault.
type Fault struct {
	vfs.FS
	mu      sync.Mutex
	rules   []*Rule
	space   func() vfs.Space
	hanging int
	waiters map[*waiter]struct{}
}

// waiter is woken when so many operations hang.
type waiter struct {
	hanging int
	wake    func()
}

// NewFault wraps fs with no rules.
func NewFault(fs vfs.FS) *Fault {
	f := &Fault{waiters: map[*waiter]struct{}{}}
	f.FS = vfs.Hooked(fs, vfs.Before(f.check))
	return f
}

// Add puts a rule in force; the first one that hits an operation decides it.
func (f *Fault) Add(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &r)
}

// Clear lifts all rules. Operations that hang already go on hanging.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// SetSpace makes Statfs answer with space(); nil asks the file system again.
func (f *Fault) SetSpace(space func() vfs.Space) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.space = space
}

// Statfs implements FS.
func (f *Fault) Statfs(path string) (vfs.Space, error) {
	s, err := f.FS.Statfs(path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.space != nil {
		s = f.space()
	}
	return s, err
}

// UntilHung returns a context that ends with ctx, or as soon as n operations or
// more hang at once. A caller of what hangs so leaves it in the kernel, however
// slow the machine is: with a deadline it may leave before it came there.
func (f *Fault) UntilHung(ctx context.Context, n int) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	w := &waiter{n, cancel}
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiters, w)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters[w] = struct{}{}
	f.wakeLocked()
	return ctx
}

// wakeLocked ends the wait of whoever waits for no more than hang now.
func (f *Fault) wakeLocked() {
	for w := range f.waiters {
		if f.hanging >= w.hanging {
			w.wake()
		}
	}
}

// hang waits until gate is closed.
func (f *Fault) hang(gate chan struct{}) {
	f.count(1)
	defer f.count(-1)
	<-gate
}

func (f *Fault) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hanging += n
	f.wakeLocked()
}

func (f *Fault) check(c vfs.Call) (int64, error) {
	r := f.hit(c)
	if r == nil {
		return 0, nil
	}
	if r.Block != nil {
		f.hang(r.Block)
	}
	if r.Err == nil {
		return 0, nil
	}
	return r.Bytes, &os.PathError{Op: string(c.Op), Path: c.Path, Err: r.Err}
}

// hit counts c against the rules and returns the one that applies.
func (f *Fault) hit(c vfs.Call) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.Op != "" && r.Op != c.Op || !strings.Contains(c.Path, r.Path) {
			continue
		}
		r.seen++
		if r.seen > r.After && (r.Count == 0 || r.seen <= r.After+r.Count) {
			return r
		}
	}
	return nil
}
