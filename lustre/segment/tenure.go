package segment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// errOver says that another run took over what this one owned.
var errOver = errors.New("another run has taken over the directory: this one did not renew its token in time")

// tenure is what this run owns, and for how long it can be sure of that
// (docs/format.md §1.10).
type tenure struct {
	renewing pool.Lock // one renewal at a time
	making   pool.Lock // one makes the directory

	mu          sync.Mutex
	dir         string // of this incarnation; "" until the first file
	incarnation uint64
	token       Token                // in dir
	since       time.Time            // when the last renewal that succeeded began
	former      map[string]bool      // directories that were this run's
	taken       map[tiers.Part]Token // tokens in directories taken over
	sightings   map[string]*sighting // by directory: tokens that may be those of the living
	timer       *time.Timer
	stopped     bool
}

// sighting is when a token was seen first.
type sighting struct {
	token Token
	first time.Time
}

func newTenure(incarnation uint64) *tenure {
	return &tenure{
		renewing: pool.NewLock(), making: pool.NewLock(), incarnation: incarnation,
		former: map[string]bool{}, taken: map[tiers.Part]Token{}, sightings: map[string]*sighting{},
	}
}

// begin notes that this run has a directory with its token.
func (h *tenure) begin(dir string, t Token, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dir, h.incarnation, h.token, h.since = dir, t.Owner, t, began
}

// current tells the directory, "" for none, and the token in it.
func (h *tenure) current() (dir string, t Token) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dir, h.token
}

// trusted reports whether no other run can have taken over by now.
func (h *tenure) trusted(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dir != "" && now.Sub(h.since) < trustFor
}

// wrote tells whether dir is, or was, one that this run writes to.
func (h *tenure) wrote(dir string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return dir == h.dir || h.former[dir]
}

// later tells whether this run began after the one of the number.
func (h *tenure) later(number uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.incarnation > number
}

// after calls fn when the next renewal is due, unless stop was called.
func (h *tenure) after(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped {
		if h.timer != nil {
			h.timer.Stop()
		}
		h.timer = time.AfterFunc(renewEvery, fn)
	}
}

func (h *tenure) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	if h.timer != nil {
		h.timer.Stop()
	}
}

// ownDir makes this incarnation's directory, with its token, before its first
// file. A number that is taken, by an operation that succeeded and said it did
// not, is left.
func (s *Store) ownDir(ctx context.Context) (string, uint64, error) {
	h := s.tenure
	if dir, t := h.current(); dir != "" {
		return dir, t.Owner, nil
	}
	if err := h.making.Acquire(ctx); err != nil {
		return "", 0, unavailable("wait for the directory", err)
	}
	defer h.making.Release()
	if dir, t := h.current(); dir != "" {
		return dir, t.Owner, nil
	}
	h.mu.Lock()
	number := h.incarnation
	h.mu.Unlock()
	for vanished := 0; ; {
		dir := filepath.Join(s.opt.Dir, format.Dir(tiers.Part{Rank: s.opt.Rank, Incarnation: number}))
		began := s.opt.Now()
		t := Token{Owner: number, Process: s.opt.Process}.next(began)
		err := s.makeDir(dir, t)
		switch {
		case errors.Is(err, os.ErrExist):
			number++
		case errors.Is(err, os.ErrNotExist) && vanished < 3:
			vanished++ // somebody removed an empty directory
		case err != nil:
			return "", 0, err
		default:
			if s.opt.Layout != nil {
				s.opt.Layout.Prepare(dir)
			}
			h.begin(dir, t, began)
			h.after(s.beat)
			return dir, number, nil
		}
	}
}

// makeDir makes a directory with a token.
func (s *Store) makeDir(dir string, t Token) error {
	err := s.fs.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrNotExist) { // all of it was purged
		if err = mkdirAll(s.fs, s.opt.Dir); err == nil {
			err = s.fs.Mkdir(dir, 0o700)
		}
	}
	if err != nil {
		return err
	}
	if err = s.makeToken(dir, t); err != nil && !errors.Is(err, os.ErrExist) {
		_ = s.fs.Rmdir(dir) // an empty directory does no harm
	}
	return err
}

func (s *Store) makeToken(dir string, t Token) error {
	f, err := s.fs.Create(filepath.Join(dir, t.String()), 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// lostDir has the next file make this incarnation's directory anew: somebody
// has removed it.
func (s *Store) lostDir() {
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	s.tenure.dir = ""
}

// beat renews the token now and then. There is one at a time, so that a file
// system that does not answer takes one thread.
func (s *Store) beat() {
	if s.admit(nil) != nil {
		return
	}
	defer s.endJob()
	defer s.tenure.after(s.beat)
	s.writes <- struct{}{}
	held := s.writes.Taken()
	defer held.End()
	_ = s.renew(context.Background()) // trust runs out if this goes on
}

// renew tells other runs that this one is alive, and finds out whether one of
// them has taken over. An error means that neither is certain now.
func (s *Store) renew(ctx context.Context) error {
	h := s.tenure
	if err := h.renewing.Acquire(ctx); err != nil {
		return unavailable("wait for the renewal of the token", err)
	}
	defer h.renewing.Release()
	for range 2 { // once more after an answer that was lost
		dir, from := h.current()
		if dir == "" {
			return unavailable("renew the token", os.ErrNotExist)
		}
		began := s.opt.Now()
		to := from.next(began)
		err := s.fs.Rename(filepath.Join(dir, from.String()), filepath.Join(dir, to.String()))
		if err == nil {
			h.begin(dir, to, began)
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return unavailable("renew the token", err)
		}
		if err := s.findToken(dir, from); err != nil {
			return err
		}
	}
	return unavailable("renew the token", os.ErrNotExist)
}

// findToken looks for the token of this run under another name. Without one its
// time is over.
func (s *Store) findToken(dir string, old Token) error {
	names, err := s.fs.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		s.lostDir()
	}
	if err != nil {
		return unavailable("look for the token", err)
	}
	for _, t := range tokens(names) {
		if t.Owner == old.Owner && t.Process == old.Process && !t.Closed {
			s.tenure.mu.Lock()
			s.tenure.token = t
			s.tenure.mu.Unlock()
			return nil
		}
	}
	s.over(dir)
	return unavailable("renew the token", errOver)
}

// over ends this run's ownership of all files. What it writes from now on goes
// to a new directory.
func (s *Store) over(dir string) {
	h := s.tenure
	h.mu.Lock()
	h.former[dir] = true
	h.dir = ""
	h.incarnation = max(h.incarnation+1, uint64(s.opt.Now().UnixNano()))
	clear(h.taken)
	h.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.files {
		f.own = false
	}
	if s.current != nil {
		s.current.done = true
		s.current = nil
	}
}

// rely returns nil when this run still owns what it owned and has a directory:
// without a file operation unless there is none, or the last renewal was long
// ago.
func (s *Store) rely(ctx context.Context) error {
	if _, _, err := s.ownDir(ctx); err != nil {
		return unavailable("make a directory", err)
	}
	if s.tenure.trusted(s.opt.Now()) {
		return nil
	}
	return s.renew(ctx)
}

// relyOn returns nil when a later owner will find what is durable in f, which
// lies in the directory of the incarnation, so that it may be acknowledged.
func (s *Store) relyOn(ctx context.Context, incarnation uint64) error {
	if !s.tenure.trusted(s.opt.Now()) {
		if err := s.renew(ctx); err != nil {
			return err
		}
	}
	if dir, t := s.tenure.current(); dir == "" || t.Owner != incarnation {
		return unavailable("write", errOver)
	}
	return nil
}
