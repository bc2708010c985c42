package layouts

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"cascadekv/internal/block"
)

// MaxNamespaces bounds the namespaces of which a rank keeps what its clients declared.
const MaxNamespaces = 4096

// ErrTooMany is for a namespace beyond them.
var ErrTooMany = errors.New("layouts: too many namespaces have one")

// Recorder keeps layouts with the blocks themselves: a tier.
type Recorder interface {
	SetLayout(ns string, seq uint64, l block.Layout) error
	Layout(ns string) (seq uint64, l block.Layout)
}

// Book is what one rank knows. All methods are safe for concurrent use.
type Book struct {
	recorders []Recorder
	now       func() time.Time

	mu struct {
		sync.Mutex
		declared map[string]declaration
		last     uint64 // seq of the newest
	}
}

// declaration is what a client declared.
type declaration struct {
	seq    uint64
	layout block.Layout
}

// New makes a Book of what the recorders have.
func New(now func() time.Time, recorders ...Recorder) *Book {
	b := &Book{recorders: recorders, now: now}
	b.mu.declared = map[string]declaration{}
	return b
}

// Set replaces the layout of a namespace. Errors: block.ErrBadLayout, ErrTooMany, those
// of the recorders when none of them took it: then it counts until the rank ends, and
// may be set again.
func (b *Book) Set(ns string, l block.Layout) error {
	if err := l.Check(); err != nil {
		return err
	}
	seq, old := b.newest(ns)
	if old != l || seq == 0 {
		var err error
		if seq, err = b.declare(ns, seq, l); err != nil {
			return err
		}
	}
	return b.record(ns, seq, l)
}

// declare notes a layout that is newer than those up to above.
func (b *Book) declare(ns string, above uint64, l block.Layout) (seq uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.mu.declared[ns]; !ok && len(b.mu.declared) >= MaxNamespaces {
		return 0, fmt.Errorf("%w: %d", ErrTooMany, MaxNamespaces)
	}
	b.mu.last = max(b.mu.last+1, uint64(b.now().UnixNano()), above+1)
	b.mu.declared[ns] = declaration{b.mu.last, l}
	return b.mu.last, nil
}

// record gives a layout to the recorders that have an older one, or none.
func (b *Book) record(ns string, seq uint64, l block.Layout) error {
	var failed []error
	for _, r := range b.recorders {
		if has, _ := r.Layout(ns); has >= seq {
			continue
		}
		if err := r.SetLayout(ns, seq, l); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) < len(b.recorders) {
		return nil
	}
	return errors.Join(failed...)
}

// Share gives each recorder what only another one has of some namespaces.
func (b *Book) Share(spaces []string) {
	for _, ns := range spaces {
		if seq, l := b.newest(ns); seq > 0 {
			_ = b.record(ns, seq, l) // it stays where it is
		}
	}
}

// Of returns the newest layout of a namespace; zero when it is not known.
func (b *Book) Of(ns string) block.Layout {
	_, l := b.newest(ns)
	return l
}

func (b *Book) newest(ns string) (seq uint64, l block.Layout) {
	for _, r := range b.recorders {
		if at, has := r.Layout(ns); at > seq {
			seq, l = at, has
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.mu.declared[ns]; s.seq > seq {
		return s.seq, s.layout
	}
	return seq, l
}
