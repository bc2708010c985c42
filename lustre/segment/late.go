package segment

import (
	"errors"
	"fmt"
	"sync/atomic"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/breaker"
	"cascadekv/lustre/segment/format"
)

// errLate is the error for a file or directory that did not answer in time. It is read when it
// answers, or when another round comes to it.
var errLate = errors.New("segment: no answer yet")

// inTime calls fn, which reads path and counts its steps. An error matches errLate:
// fn takes too long. It goes on in the background then, and Arrived reports its end;
// what it sets must not be touched.
func (r *recovery) inTime(path string, fn func(steps *atomic.Int64)) error {
	s := r.s
	if r.still.Now == 0 {
		r.still.Now = s.opt.Patience
	}
	var steps atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(&steps)
	}()
	if r.still.Wait(done, &steps) {
		s.noteLate(path, false)
		return nil
	}
	s.noteLate(path, true)
	go func() {
		<-done
		select {
		case s.arrived <- struct{}{}:
		default:
		}
	}()
	return fmt.Errorf("%s: %w", path, errLate)
}

// scan reads the entries of the segment id at path. An error matches errLate when
// the file does not answer.
func (r *recovery) scan(path string, id format.FileID, settle bool) (*format.Scanner, []format.Entry, error) {
	s := r.s
	sc := &format.Scanner{Settle: settle, Durable: true}
	var entries []format.Entry
	var err error
	late := r.inTime(path, func(steps *atomic.Int64) {
		sc.Steps = steps
		if sc.File, err = s.fs.Open(path); err == nil {
			entries, err = sc.Entries(id)
			err = errors.Join(err, sc.File.Close())
		}
	})
	if late != nil {
		return nil, nil, late
	}
	if sc.Unsafe != nil {
		s.skip(path, fmt.Errorf("frames that may not be durable are left out: %w", sc.Unsafe))
	}
	if sc.Hidden != nil {
		s.skip(path, sc.Hidden)
	}
	if breaker.IsRefused(err) { // others on this server hang
		s.noteLate(path, true)
		err = fmt.Errorf("%w: %w", errLate, err)
	}
	return sc, entries, err
}

// list is ReadDir of a directory, with an error that matches errLate when it does
// not answer.
func (r *recovery) list(dir string) ([]string, error) {
	s := r.s
	var names []string
	var err error
	if late := r.inTime(dir, func(*atomic.Int64) { names, err = s.fs.ReadDir(dir) }); late != nil {
		return nil, late
	}
	return names, err
}

// grown reports whether a file has another size than it had. One that cannot be
// looked at now is looked at the next time.
func (r *recovery) grown(path string, was int64) bool {
	s := r.s
	var size int64
	var err error
	late := r.inTime(path, func(*atomic.Int64) {
		var h vfs.File
		if h, err = s.fs.Open(path); err == nil {
			size, err = h.Size()
			err = errors.Join(err, h.Close())
		}
	})
	return late == nil && err == nil && size != was
}

// Arrived sends when something that was late has answered, well or not: to adopt
// its incarnation may be worth it.
func (s *Store) Arrived() <-chan struct{} { return s.arrived }
