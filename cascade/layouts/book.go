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

// Recorder keeps layouts with the blocks themselves: tiers.Files.
type Recorder interface {
	SetLayout(ns string, seq uint64, l block.Layout) error
	Layout(ns string) (seq uint64, l block.Layout)
}

// Book is what one rank knows. All methods are safe for concurrent use.
type Book struct {
	recorder Recorder
	now      func() time.Time

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

// New makes a Book. recorder is nil where nothing outlives the rank.
func New(recorder Recorder, now func() time.Time) *Book {
	b := &Book{recorder: recorder, now: now}
	b.mu.declared = map[string]declaration{}
	return b
}

// Set replaces the layout of a namespace. Errors: block.ErrBadLayout, ErrTooMany, those
// of the recorder: then it counts until the rank ends, and may be set again.
func (b *Book) Set(ns string, l block.Layout) error {
	if err := l.Check(); err != nil {
		return err
	}
	old, of := b.newest(ns)
	if of == l && old > 0 {
		return nil
	}
	b.mu.Lock()
	if _, ok := b.mu.declared[ns]; !ok && len(b.mu.declared) >= MaxNamespaces {
		b.mu.Unlock()
		return fmt.Errorf("%w: %d", ErrTooMany, MaxNamespaces)
	}
	b.mu.last = max(b.mu.last+1, uint64(b.now().UnixNano()), old+1)
	seq := b.mu.last
	b.mu.declared[ns] = declaration{seq, l}
	b.mu.Unlock()
	if b.recorder == nil {
		return nil
	}
	return b.recorder.SetLayout(ns, seq, l)
}

// Of returns the newest layout of a namespace; zero when it is not known.
func (b *Book) Of(ns string) block.Layout {
	_, l := b.newest(ns)
	return l
}

func (b *Book) newest(ns string) (seq uint64, l block.Layout) {
	if b.recorder != nil {
		seq, l = b.recorder.Layout(ns)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.mu.declared[ns]; s.seq > seq {
		return s.seq, s.layout
	}
	return seq, l
}
