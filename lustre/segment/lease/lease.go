package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// errLost is returned once another run took over what this one owned.
var errLost = errors.New("another run has taken over the directory: this one did not renew its token in time")

// Options say whose lease it is. All are required but Succeeds and Prepare.
type Options struct {
	FS          vfs.FS
	Dir         string // of all runs
	Rank        uint32
	Incarnation uint64
	Process     Process
	Succeeds    bool // other runs of Process have ended: it became another program
	Now         func() time.Time
	Prepare     func(dir string) // called with the run's directory when it was made

	// Begin counts a renewal in the background as an operation on the file system,
	// which end ends; false when there are to be none any more.
	Begin func() (end func(), ok bool)

	// Lost is called when another run has taken over what this one owned.
	Lost func()
}

// Lease is what this run owns, and for how long it can be sure of that
// (docs/format.md §1.10). Its methods are safe for concurrent use. Lost is called
// without a lock held.
type Lease struct {
	o        Options
	renewing pool.Lock // one renewal at a time
	making   pool.Lock // one makes the directory

	mu           sync.Mutex
	dir          string // of this incarnation; "" until the first file
	incarnation  uint64
	token        Token                   // in dir
	since        time.Time               // when the last renewal that succeeded began
	former       map[string]bool         // directories that were this run's
	taken        map[tiers.Part]Token    // tokens in directories taken over
	observations map[string]*observation // by directory: tokens that may be those of the living
	timer        *time.Timer
	stopped      bool
}

// observation is when a token was seen first.
type observation struct {
	token Token
	first time.Time
}

// New makes the lease of a run that owns nothing yet.
func New(o Options) *Lease {
	return &Lease{
		o: o, renewing: pool.NewLock(), making: pool.NewLock(), incarnation: o.Incarnation,
		former: map[string]bool{}, taken: map[tiers.Part]Token{}, observations: map[string]*observation{},
	}
}

// begin notes that this run has a directory with its token.
func (l *Lease) begin(dir string, t Token, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dir, l.incarnation, l.token, l.since = dir, t.Owner, t, began
}

// Current returns the directory, "" for none, and the token in it.
func (l *Lease) Current() (dir string, t Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dir, l.token
}

// Trusted reports whether no other run can have taken over by now.
func (l *Lease) Trusted(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dir != "" && now.Sub(l.since) < TrustFor
}

// Wrote reports whether dir is, or was, one that this run writes to.
func (l *Lease) Wrote(dir string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return dir == l.dir || l.former[dir]
}

// later reports whether this run began after the one of the number.
func (l *Lease) later(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.incarnation > number
}

// after calls fn when the next renewal is due, unless stop was called.
func (l *Lease) after(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		if l.timer != nil {
			l.timer.Stop()
		}
		l.timer = time.AfterFunc(RenewEvery, fn)
	}
}

// Stop ends renewals.
func (l *Lease) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// OwnDir makes this incarnation's directory, with its token, before its first
// file. A number that is taken, by an operation that succeeded and reported that it did
// not, is left.
func (l *Lease) OwnDir(ctx context.Context) (string, uint64, error) {
	if dir, t := l.Current(); dir != "" {
		return dir, t.Owner, nil
	}
	if err := l.making.Acquire(ctx); err != nil {
		return "", 0, unavailable("wait for the directory", err)
	}
	defer l.making.Release()
	if dir, t := l.Current(); dir != "" {
		return dir, t.Owner, nil
	}
	l.mu.Lock()
	number := l.incarnation
	l.mu.Unlock()
	for vanished := 0; ; {
		dir := filepath.Join(l.o.Dir, format.Dir(tiers.Part{Rank: l.o.Rank, Incarnation: number}))
		began := l.o.Now()
		t := Token{Owner: number, Process: l.o.Process}.next(began)
		err := l.makeDir(dir, t)
		switch {
		case errors.Is(err, os.ErrExist):
			number++
		case errors.Is(err, os.ErrNotExist) && vanished < 3:
			vanished++ // somebody removed an empty directory
		case err != nil:
			return "", 0, err
		default:
			if l.o.Prepare != nil {
				l.o.Prepare(dir)
			}
			l.begin(dir, t, began)
			l.after(l.Beat)
			return dir, number, nil
		}
	}
}

// makeDir makes a directory with a token.
func (l *Lease) makeDir(dir string, t Token) error {
	err := l.o.FS.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrNotExist) { // all of it was purged
		if err = MkdirAll(l.o.FS, l.o.Dir); err == nil {
			err = l.o.FS.Mkdir(dir, 0o700)
		}
	}
	if err != nil {
		return err
	}
	if err = l.makeToken(dir, t); err != nil && !errors.Is(err, os.ErrExist) {
		_ = l.o.FS.Rmdir(dir) // an empty directory does no harm
	}
	return err
}

func (l *Lease) makeToken(dir string, t Token) error {
	f, err := l.o.FS.Create(filepath.Join(dir, t.String()), 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// DirLost has the next file make this incarnation's directory anew: somebody
// has removed it.
func (l *Lease) DirLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dir = ""
}

// Beat renews the token now and then. There is one at a time, so that a file
// system that does not answer takes one thread.
func (l *Lease) Beat() {
	end, ok := l.o.Begin()
	if !ok {
		return
	}
	defer end()
	defer l.after(l.Beat)
	_ = l.Renew(context.Background()) // trust runs out if this goes on
}

// Renew shows other runs that this one is alive, and finds out whether one of
// them has taken over. An error means that neither is certain now.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.renewing.Acquire(ctx); err != nil {
		return unavailable("wait for the renewal of the token", err)
	}
	defer l.renewing.Release()
	for range 2 { // once more after an answer that was lost
		dir, from := l.Current()
		if dir == "" {
			return unavailable("renew the token", os.ErrNotExist)
		}
		began := l.o.Now()
		to := from.next(began)
		err := l.o.FS.Rename(filepath.Join(dir, from.String()), filepath.Join(dir, to.String()))
		if err == nil {
			l.begin(dir, to, began)
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return unavailable("renew the token", err)
		}
		if err := l.findToken(dir, from); err != nil {
			return err
		}
	}
	return unavailable("renew the token", os.ErrNotExist)
}

// findToken looks for the token of this run under another name. Without one its
// time is over.
func (l *Lease) findToken(dir string, old Token) error {
	names, err := l.o.FS.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		l.DirLost()
	}
	if err != nil {
		return unavailable("look for the token", err)
	}
	for _, t := range Tokens(names) {
		if t.Owner == old.Owner && t.Process == old.Process && !t.Closed {
			l.mu.Lock()
			l.token = t
			l.mu.Unlock()
			return nil
		}
	}
	l.lost(dir)
	return unavailable("renew the token", errLost)
}

// lost ends this run's ownership of all files. What it writes from now on goes
// to a new directory.
func (l *Lease) lost(dir string) {
	l.mu.Lock()
	l.former[dir] = true
	l.dir = ""
	l.incarnation = max(l.incarnation+1, uint64(l.o.Now().UnixNano()))
	clear(l.taken)
	l.mu.Unlock()
	l.o.Lost()
}

// Verify returns nil when this run still owns what it owned and has a directory:
// without a file operation unless there is none, or the last renewal was long
// ago.
func (l *Lease) Verify(ctx context.Context) error {
	if _, _, err := l.OwnDir(ctx); err != nil {
		return unavailable("make a directory", err)
	}
	if l.Trusted(l.o.Now()) {
		return nil
	}
	return l.Renew(ctx)
}

// VerifyFor returns nil when a later owner will find what is durable in f, which
// lies in the directory of the incarnation, so that it may be acknowledged.
func (l *Lease) VerifyFor(ctx context.Context, incarnation uint64) error {
	if !l.Trusted(l.o.Now()) {
		if err := l.Renew(ctx); err != nil {
			return err
		}
	}
	if dir, t := l.Current(); dir == "" || t.Owner != incarnation {
		return unavailable("write", errLost)
	}
	return nil
}

func unavailable(what string, err error) error {
	return fmt.Errorf("lustre: %w: %s: %w", tiers.ErrUnavailable, what, err)
}
