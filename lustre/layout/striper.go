package layout

import (
	"errors"
	"sync"
)

// Striper lays out the files of one writer: it gives each directory that the
// writer makes a default layout and reads back what its files were granted. It
// is what a segment store asks for (segment.Layouter). Nothing that goes wrong
// here keeps a file from being written. Safe for concurrent use.
type Striper struct {
	asked Layout
	log   func(Report)

	mu       sync.Mutex
	refused  error  // why the last directory has no default of ours
	reported string // the layout of the last report
	last     Report // on the newest file
}

// NewStriper makes a Striper that asks for a layout, the zero one to leave
// everything to the file system. report is called from the writer's goroutine with
// the report on the first file and on each that was granted another layout than
// the one before; it must not block. It is never called for a file system
// without stripes.
func NewStriper(asked Layout, report func(Report)) *Striper {
	return &Striper{asked: asked, log: report}
}

// Prepare gives a new directory the default layout.
func (s *Striper) Prepare(dir string) {
	if s.asked.IsZero() {
		return
	}
	err := SetDefault(dir, s.asked)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = err
}

// Describe returns the layout that a new file was granted, as text; "" when
// there is none or it cannot be read.
func (s *Striper) Describe(path string) string {
	r := Report{Path: path, Asked: s.asked, Striped: true}
	granted, err := Read(path)
	if errors.Is(err, ErrNotLustre) {
		return ""
	}
	if err == nil {
		r.Granted = granted
		r.compare()
	}
	s.report(r, err)
	if err != nil {
		return ""
	}
	return granted.String()
}

// report passes on what is new.
func (s *Striper) report(r Report, err error) {
	s.mu.Lock()
	r.Err = errors.Join(s.refused, err)
	known := "layout " + r.Granted.Layout().Options()
	if r.Err != nil {
		known += r.Err.Error()
	}
	fresh := known != s.reported
	s.reported, s.last = known, r
	s.mu.Unlock()
	if fresh && s.log != nil {
		s.log(r)
	}
}

// Last returns the report on the newest file; false: there is none, or the file
// system has no stripes.
func (s *Striper) Last() (Report, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.last.Path != ""
}
