package lease

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// Owns reports whether this run owns the directory of an incarnation, of which
// names were listed, after taking it over if its owner has ended and it may. It
// returns the names that lie there then. r remembers which runs have ended.
func (l *Lease) Owns(one tiers.Part, names []string, r *Round) (own bool, there []string, err error) {
	l.mu.Lock()
	_, taken := l.taken[one]
	// One of another rank number that happens to have this run's is left to others:
	// a token there would be the same for both.
	mayAdopt := one.Rank == l.o.Rank || r.AdoptOrphans && one.Incarnation != l.incarnation
	l.mu.Unlock()
	if !mayAdopt {
		return taken, names, nil
	}
	dir := filepath.Join(l.o.Dir, format.Dir(one))
	all := Tokens(names)
	if len(all) == 0 {
		if names, all, err = l.look(dir); err != nil {
			return false, names, err
		}
	}
	mine := 0
	for _, t := range all {
		switch {
		case l.isMine(t):
			mine++
		case !l.ended(one, t, r):
			return false, names, nil
		}
	}
	switch {
	case mine > 0 && mine == len(all):
		l.noteTaken(one, all[0])
		return true, names, nil
	case len(all) == len(names):
		if len(all) > 0 { // else it is being made
			l.dropDir(dir, all)
		}
		return false, nil, nil
	case len(all) == 0 && !l.later(one.Incarnation):
		return false, names, nil // of a program without tokens, which may run
	}
	t, err := l.claim(dir, all)
	if err == nil {
		names, err = l.settleClaim(one, t, r)
	}
	if errors.Is(err, os.ErrPermission) {
		return false, names, nil // of another member of the group: it is read, and stays theirs
	}
	if err != nil {
		return false, names, err
	}
	l.noteTaken(one, t)
	return true, names, nil
}

// look lists a directory and the tokens in it. A listing may miss a file that is
// being renamed, but not two in a row: there is a minute between two renewals.
func (l *Lease) look(dir string) (names []string, all []Token, err error) {
	if names, err = l.o.FS.ReadDir(dir); err != nil {
		return nil, nil, err
	}
	return names, Tokens(names), nil
}

// isMine reports whether t is a token of this run.
func (l *Lease) isMine(t Token) bool {
	dir, own := l.Current()
	return dir != "" && !t.Closed && t.Owner == own.Owner && t.Process == own.Process
}

func (l *Lease) noteTaken(one tiers.Part, t Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[one] = t
}

// ended reports whether the run that t names, a token in the directory of one and none of this run's, can
// do nothing any more that needs ownership.
func (l *Lease) ended(one tiers.Part, t Token, r *Round) bool {
	if t.Closed || t.Process.Gone() || l.o.Succeeds && t.Process == l.o.Process {
		return true
	}
	if t.Owner == one.Incarnation {
		return l.isSilent(one, t)
	}
	run := owner{t.Owner, t.Process}
	if end, known := r.ended[run]; known {
		return end
	}
	end := l.endedElsewhere(one, t)
	if r.ended == nil {
		r.ended = map[owner]bool{}
	}
	r.ended[run] = end
	return end
}

// endedElsewhere judges a run that took over one by the token in its own
// directory, which is the one that it renews. Which rank's that is its number
// does not say.
func (l *Lease) endedElsewhere(one tiers.Part, t Token) bool {
	others := false
	for range 2 { // see look
		list, err := l.o.FS.ReadDir(l.o.Dir)
		if err != nil {
			return false
		}
		homes := format.Parts(list)
		others = false
		for _, home := range homes {
			if home.Incarnation != t.Owner {
				continue
			}
			_, all, err := l.look(filepath.Join(l.o.Dir, format.Dir(home)))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return false
			}
			for _, its := range all {
				if its.Owner == t.Owner && its.Process == t.Process {
					return its.Closed || l.isSilent(home, its)
				}
			}
			others = others || len(all) > 0
		}
	}
	// Somebody else's token is there because the run had ended. Without any
	// nothing is known; t itself is not renewed, so its time means nothing.
	return others || l.unchanged(one, t)
}

// isSilent reports whether t, which its owner renews in the directory of one, should
// have been renewed by now.
func (l *Lease) isSilent(one tiers.Part, t Token) bool {
	return l.o.Now().Sub(time.Unix(t.Renewed, 0)) > ClockSlack || l.unchanged(one, t)
}

// unchanged reports whether t was seen in the directory of one for long.
func (l *Lease) unchanged(one tiers.Part, t Token) bool {
	now, dir := l.o.Now(), format.Dir(one)
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.observations[dir]
	if seen == nil || seen.token != t {
		l.observations[dir] = &observation{t, now}
		return false
	}
	return now.Sub(seen.first) >= SilentFor
}

// claim puts a token of this run in the place of one of others, which have
// ended. It fails when another run was faster.
func (l *Lease) claim(dir string, others []Token) (Token, error) {
	if err := l.Verify(context.Background()); err != nil {
		return Token{}, err
	}
	_, t := l.Current()
	if len(others) == 0 {
		return t, l.makeToken(dir, t)
	}
	return t, l.o.FS.Rename(filepath.Join(dir, others[0].String()), filepath.Join(dir, t.String()))
}

// settleClaim makes sure that t is the only token in the directory: two runs may
// have found none, or more than one, at the same time. It returns what lies
// there.
func (l *Lease) settleClaim(one tiers.Part, t Token, r *Round) ([]string, error) {
	dir := filepath.Join(l.o.Dir, format.Dir(one))
	names, err := l.o.FS.ReadDir(dir)
	for _, other := range Tokens(names) {
		if err != nil || other == t {
			continue
		}
		if !l.ended(one, other, r) {
			err = errors.New("two runs took it over at the same time; it is tried again later")
		} else {
			err = l.o.FS.Remove(filepath.Join(dir, other.String()))
		}
	}
	if err != nil {
		given := t
		given.Closed = true
		_ = l.o.FS.Rename(filepath.Join(dir, t.String()), filepath.Join(dir, given.String())) // else others wait for this run's end
	}
	return names, err
}

// dropDir removes a directory in which there is nothing but tokens. Whoever
// removes a token that is still there does it alone.
func (l *Lease) dropDir(dir string, all []Token) {
	for _, t := range all {
		if l.o.FS.Remove(filepath.Join(dir, t.String())) != nil {
			return
		}
	}
	_ = l.o.FS.Rmdir(dir) // empty or not, it does no harm
}

// Drop removes the directory of an incarnation that was taken over, if
// nothing is left in it.
func (l *Lease) Drop(one tiers.Part) {
	l.mu.Lock()
	t, taken := l.taken[one]
	l.mu.Unlock()
	dir := filepath.Join(l.o.Dir, format.Dir(one))
	if names, err := l.o.FS.ReadDir(dir); !taken || err != nil || len(names) != 1 || names[0] != t.String() {
		return
	}
	l.dropDir(dir, []Token{t})
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.taken, one)
}

// Retire records that this run has ended in good order: others need not wait for
// that. A directory that was never used goes.
func (l *Lease) Retire(used bool) {
	dir, t := l.Current()
	if dir == "" {
		return
	}
	l.mu.Lock()
	used = used || len(l.taken) > 0
	l.mu.Unlock()
	if !used {
		if names, err := l.o.FS.ReadDir(dir); err == nil && len(names) == 1 && names[0] == t.String() {
			l.dropDir(dir, []Token{t})
			return
		}
	}
	closed := t
	closed.Closed = true
	_ = l.o.FS.Rename(filepath.Join(dir, t.String()), filepath.Join(dir, closed.String())) // else others find out in time
}

// Round is what one look at several directories finds out about their owners.
type Round struct {
	AdoptOrphans bool // runs of other rank numbers that have ended are taken over too

	ended map[owner]bool // whether these runs have ended
}

// owner is a run as its tokens name it.
type owner struct {
	number  uint64
	process Process
}

// HasEnded reports whether an incarnation with these tokens could be taken over. A
// token may be missing for being renamed meanwhile, which is a reason to wait.
func (l *Lease) HasEnded(one tiers.Part, all []Token) bool {
	if len(all) == 0 {
		return l.later(one.Incarnation)
	}
	var r Round
	for _, t := range all {
		if l.isMine(t) || !l.ended(one, t, &r) {
			return false
		}
	}
	return true
}

// MayWriteHere reports whether a process of this node may be writing to the
// directory in which these names lie. Nobody else must sync its files: only the
// first fsync of a node learns that writes were lost (docs/format.md §1.7).
func (l *Lease) MayWriteHere(names []string) bool {
	here, unknown := l.o.Process.Boot, [16]byte{}
	return slices.ContainsFunc(Tokens(names), func(t Token) bool {
		return !t.Closed && !t.Process.Gone() && (t.Process.Boot == here || t.Process.Boot == unknown || here == unknown)
	})
}

// DirGone notes that a directory of this run's is gone.
func (l *Lease) DirGone(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir == dir {
		l.dir = ""
	}
	for one := range l.taken {
		if filepath.Join(l.o.Dir, format.Dir(one)) == dir {
			delete(l.taken, one)
		}
	}
}

// MkdirAll makes a directory and those above it.
func MkdirAll(fs vfs.FS, dir string) error {
	err := fs.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		if err = MkdirAll(fs, filepath.Dir(dir)); err == nil {
			err = fs.Mkdir(dir, 0o700)
		}
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}
