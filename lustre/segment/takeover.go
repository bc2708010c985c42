package segment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// owns tells whether this run owns the directory of an incarnation, of which
// names were listed, after taking it over if its owner has ended and it may. It
// returns the names that lie there then. r remembers which runs have ended.
func (s *Store) owns(one tiers.Part, names []string, r *recovery) (bool, []string) {
	if one.Rank != s.opt.Rank && !s.mayInherit(one, r) {
		return s.hasTaken(one), names
	}
	dir := filepath.Join(s.opt.Dir, format.Dir(one))
	all := tokens(names)
	if len(all) == 0 {
		var err error
		if names, all, err = s.look(dir); err != nil {
			s.skip(dir, err)
			return false, names
		}
	}
	mine := 0
	for _, t := range all {
		switch {
		case s.isMine(t):
			mine++
		case !s.ended(one, t, r):
			return false, names
		}
	}
	switch {
	case mine > 0 && mine == len(all):
		s.noteTaken(one, all[0])
		return true, names
	case len(all) == len(names):
		if len(all) > 0 { // else it is being made
			s.dropDir(dir, all)
		}
		return false, nil
	case len(all) == 0 && !s.tenure.later(one.Incarnation):
		return false, names // of a program that knows no tokens, and may run
	}
	t, err := s.claim(dir, all)
	if err == nil {
		names, err = s.settleClaim(one, t, r)
	}
	if errors.Is(err, os.ErrPermission) {
		return false, names // of another member of the group: it is read, and stays theirs
	}
	if err != nil {
		s.skip(dir, err)
		return false, names
	}
	s.noteTaken(one, t)
	return true, names
}

// mayInherit tells whether one, of another rank number, is taken over when it
// has ended. One that happens to have this run's number is left to others: a
// token there would not tell the two apart.
func (s *Store) mayInherit(one tiers.Part, r *recovery) bool {
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	return r.inherits && one.Incarnation != s.tenure.incarnation
}

// look lists a directory and the tokens in it. A listing may miss a file that is
// being renamed, but not two in a row: there is a minute between two renewals.
func (s *Store) look(dir string) (names []string, all []Token, err error) {
	if names, err = s.fs.ReadDir(dir); err != nil {
		return nil, nil, err
	}
	return names, tokens(names), nil
}

// isMine tells whether t is a token of this run.
func (s *Store) isMine(t Token) bool {
	dir, own := s.tenure.current()
	return dir != "" && !t.Closed && t.Owner == own.Owner && t.Process == own.Process
}

func (s *Store) noteTaken(one tiers.Part, t Token) {
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	s.tenure.taken[one] = t
}

// hasTaken tells whether one was taken over by this run.
func (s *Store) hasTaken(one tiers.Part) bool {
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	_, taken := s.tenure.taken[one]
	return taken
}

// ended tells whether the run that t names, a token in the directory of one, can
// do nothing any more that needs ownership.
func (s *Store) ended(one tiers.Part, t Token, r *recovery) bool {
	if t.Closed || t.Process.Gone() {
		return true
	}
	if t.Owner == one.Incarnation {
		return s.silent(one, t)
	}
	run := owner{t.Owner, t.Process}
	if end, known := r.ended[run]; known {
		return end
	}
	end := s.endedElsewhere(one, t)
	if r.ended == nil {
		r.ended = map[owner]bool{}
	}
	r.ended[run] = end
	return end
}

// endedElsewhere judges a run that took over one by the token in its own
// directory, which is the one that it renews. Which rank's that is its number
// does not say.
func (s *Store) endedElsewhere(one tiers.Part, t Token) bool {
	others := false
	for range 2 { // see look
		homes, err := s.incarnations()
		if err != nil {
			return false
		}
		others = false
		for _, home := range homes {
			if home.Incarnation != t.Owner {
				continue
			}
			_, all, err := s.look(filepath.Join(s.opt.Dir, format.Dir(home)))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return false
			}
			for _, its := range all {
				if its.Owner == t.Owner && its.Process == t.Process {
					return its.Closed || s.silent(home, its)
				}
			}
			others = others || len(all) > 0
		}
	}
	// Somebody else's token is there because the run had ended. Without any
	// nothing is known; t itself is not renewed, so its time tells nothing.
	return others || s.unchanged(one, t)
}

// silent tells whether t, which its owner renews in the directory of one, should
// have been renewed by now.
func (s *Store) silent(one tiers.Part, t Token) bool {
	return s.opt.Now().Sub(time.Unix(t.Renewed, 0)) > clockSlack || s.unchanged(one, t)
}

// unchanged tells whether t was seen in the directory of one for long.
func (s *Store) unchanged(one tiers.Part, t Token) bool {
	now, dir := s.opt.Now(), format.Dir(one)
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	seen := s.tenure.sightings[dir]
	if seen == nil || seen.token != t {
		s.tenure.sightings[dir] = &sighting{t, now}
		return false
	}
	return now.Sub(seen.first) >= silentFor
}

// claim puts a token of this run in the place of one of others, which have
// ended. It fails when another run was faster.
func (s *Store) claim(dir string, others []Token) (Token, error) {
	if err := s.rely(context.Background()); err != nil {
		return Token{}, err
	}
	_, t := s.tenure.current()
	if len(others) == 0 {
		return t, s.makeToken(dir, t)
	}
	return t, s.fs.Rename(filepath.Join(dir, others[0].String()), filepath.Join(dir, t.String()))
}

// settleClaim makes sure that t is the only token in the directory: two runs may
// have found none, or more than one, at the same time. It returns what lies
// there.
func (s *Store) settleClaim(one tiers.Part, t Token, r *recovery) ([]string, error) {
	dir := filepath.Join(s.opt.Dir, format.Dir(one))
	names, err := s.fs.ReadDir(dir)
	for _, other := range tokens(names) {
		if err != nil || other == t {
			continue
		}
		if !s.ended(one, other, r) {
			err = errors.New("two runs took it over at the same time; it is tried again later")
		} else {
			err = s.fs.Remove(filepath.Join(dir, other.String()))
		}
	}
	if err != nil {
		given := t
		given.Closed = true
		_ = s.fs.Rename(filepath.Join(dir, t.String()), filepath.Join(dir, given.String())) // else others wait for this run's end
	}
	return names, err
}

// dropDir removes a directory in which there is nothing but tokens. Whoever
// removes a token that is still there does it alone.
func (s *Store) dropDir(dir string, all []Token) {
	for _, t := range all {
		if s.fs.Remove(filepath.Join(dir, t.String())) != nil {
			return
		}
	}
	_ = s.fs.Rmdir(dir) // empty or not, it does no harm
}

// dropTaken removes the directory of an incarnation that was taken over, if
// nothing is left in it.
func (s *Store) dropTaken(one tiers.Part) {
	s.tenure.mu.Lock()
	t, taken := s.tenure.taken[one]
	s.tenure.mu.Unlock()
	dir := filepath.Join(s.opt.Dir, format.Dir(one))
	if names, err := s.fs.ReadDir(dir); !taken || err != nil || len(names) != 1 || names[0] != t.String() {
		return
	}
	s.dropDir(dir, []Token{t})
	s.tenure.mu.Lock()
	defer s.tenure.mu.Unlock()
	delete(s.tenure.taken, one)
}

// retire says that this run has ended in good order: others need not wait for
// that. A directory that was never used goes.
func (s *Store) retire(used bool) {
	dir, t := s.tenure.current()
	if dir == "" {
		return
	}
	s.tenure.mu.Lock()
	used = used || len(s.tenure.taken) > 0
	s.tenure.mu.Unlock()
	if !used {
		if names, err := s.fs.ReadDir(dir); err == nil && len(names) == 1 && names[0] == t.String() {
			s.dropDir(dir, []Token{t})
			return
		}
	}
	closed := t
	closed.Closed = true
	_ = s.fs.Rename(filepath.Join(dir, t.String()), filepath.Join(dir, closed.String())) // else others find out in time
}
