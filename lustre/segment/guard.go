package segment

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"cascadekv/internal/vfs"
)

// ErrRefused says that a file or directory is not read because of whose it is, or
// because others may change it: somebody else may have put there what they like.
// Its blocks are misses.
var ErrRefused = errors.New("segment: not read")

// Trust says whose files are read: those of one user and of root, and those of a
// group.
type Trust struct {
	UID   uint32
	Also  []uint32 // more users
	Group uint32   // 0: none

	// Open says that anybody can make files in the campaign's directory. Whoever
	// makes one there may give it the directory's group, so that a group then says
	// nothing.
	Open bool
}

// Judge returns nil for a file or directory that may be read. Errors match
// ErrRefused.
func (t Trust) Judge(st vfs.Stat) error {
	if err := t.Owner(st); err != nil {
		return err
	}
	if st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && !t.inGroup(st) {
		return fmt.Errorf("%w: mode %04o lets others change it; chmod go-w it if nobody did", ErrRefused, st.Mode&0o7777)
	}
	return nil
}

// Owner is Judge without a look at the permissions.
func (t Trust) Owner(st vfs.Stat) error {
	if st.UID == t.UID || st.UID == 0 || slices.Contains(t.Also, st.UID) || t.inGroup(st) {
		return nil
	}
	return fmt.Errorf("%w: it belongs to user %d, group %d", ErrRefused, st.UID, st.GID)
}

func (t Trust) inGroup(st vfs.Stat) bool { return t.Group != 0 && st.GID == t.Group && !t.Open }

// Refused is what a store did not read because of whose it is.
type Refused struct {
	Files int      // files and directories since Open, each counted once as far as they can be told apart
	First []string // some of them, each with the reason
}

const (
	// maxRefused bounds the names that are remembered, so that they are counted
	// once.
	maxRefused = 1 << 14

	// namedRefused is how many of them are named to people.
	namedRefused = 3
)

// guard keeps a store from what strangers put into its directory.
type guard struct {
	dir  string
	name string // of a file that nobody else makes there

	mu      sync.Mutex
	trust   Trust
	exposed bool
	asked   bool // which user the file system takes this one for
	refused Refused
	seen    map[string]struct{}
}

// newGuard is a guard of the directory, which is there.
func newGuard(o *Options) (*guard, error) {
	g := &guard{
		dir: o.Dir, name: fmt.Sprintf("probe-owner-rank%03d-%016x-%d.tmp", o.Rank, o.Incarnation, os.Getpid()),
		trust: Trust{UID: uint32(os.Geteuid()), Group: uint32(o.Group)}, seen: map[string]struct{}{},
	}
	st, err := vfs.StatPath(o.Dir)
	if err != nil {
		return nil, unavailable("look at the directory of segments", err)
	}
	g.trust.Open = st.Mode&0o002 != 0
	g.exposed = g.trust.Open && st.Mode&syscall.S_ISVTX == 0
	if o.Group != 0 && !memberOf(o.Group) {
		return nil, unavailable("share segments with a group", fmt.Errorf(
			"%w: user %d is not in group %d: add the user to it, or name another group", os.ErrPermission, os.Geteuid(), o.Group))
	}
	return g, nil
}

// GroupID returns the number of a group that is given by its name or number; 0 for
// "". It is no error when the number has no name.
func GroupID(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(text)
	if err != nil {
		return 0, fmt.Errorf("%w: give its number, as getent group prints it", err)
	}
	n, err := strconv.ParseUint(g.Gid, 10, 31)
	return int(n), err
}

// memberOf reports whether this process may give files to a group.
func memberOf(group int) bool {
	groups, err := os.Getgroups()
	return os.Geteuid() == 0 || os.Getegid() == group || err == nil && slices.Contains(groups, group)
}

// fs is the machine's file system as the store sees it.
func (g *guard) fs(readv vfs.Readv) vfs.OS {
	return vfs.OS{Readv: readv, Check: g.check, Root: g.dir, Group: int(g.trust.Group)}
}

// check is a vfs.OS's.
func (g *guard) check(path string, st vfs.Stat) error {
	g.mu.Lock()
	trust, asked := g.trust, g.asked
	g.mu.Unlock()
	err := trust.Owner(st)
	if err != nil && !asked {
		trust = g.ask()
	}
	if err = trust.Judge(st); err != nil {
		g.note(path, err)
	}
	return err
}

// ask finds out which user the file system takes this one for: a server may make
// another of it, as Lustre does of root. It is asked once.
func (g *guard) ask() Trust {
	uid, err := g.uid()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = true
	if err == nil && uid != g.trust.UID && !slices.Contains(g.trust.Also, uid) {
		g.trust.Also = append(slices.Clone(g.trust.Also), uid)
	}
	return g.trust
}

// uid makes a file and looks whose it is.
func (g *guard) uid() (uint32, error) {
	path := filepath.Join(g.dir, g.name)
	f, err := vfs.OS{}.Create(path, 0o600)
	if err != nil {
		return 0, err
	}
	st, err := vfs.StatOf(f)
	return st.UID, errors.Join(err, f.Close(), vfs.OS{}.Remove(path))
}

// isRefusal reports whether err says that something is not what a rank leaves: that
// of a stranger, or no file at all.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{ErrRefused, vfs.ErrNotRegular, vfs.ErrLoop, vfs.ErrNotDir, syscall.ENXIO}, func(e error) bool { return errors.Is(err, e) })
}

// note counts what was refused, and reports whether err says that something was.
func (g *guard) note(path string, err error) bool {
	if !isRefusal(err) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, again := g.seen[path]; again {
		return true
	}
	if len(g.seen) < maxRefused {
		g.seen[path] = struct{}{}
	}
	g.refused.Files++
	if len(g.refused.First) < namedRefused {
		if rel, rerr := filepath.Rel(g.dir, path); rerr == nil {
			path = rel
		}
		if pe, ok := errors.AsType[*os.PathError](err); ok {
			err = pe.Err
		}
		g.refused.First = append(g.refused.First, path+": "+err.Error())
	}
	return true
}

// Refused returns what was not read because of whose it is.
func (s *Store) Refused() Refused {
	g := s.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	return Refused{g.refused.Files, slices.Clone(g.refused.First)}
}

// IsRefused reports whether err says that a file was not read because of whose it
// is, or because it is none. The store counts these.
func IsRefused(err error) bool { return isRefusal(err) }

// hasRefused reports whether anything was refused.
func (g *guard) hasRefused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused.Files > 0
}
