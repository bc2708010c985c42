package trust

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
	"cascadekv/tiers"
)

// ErrRefused is the error for a file or directory that is not read because of whose it is, or
// because others may change it: somebody else may have put there what they like.
// Its blocks are misses.
var ErrRefused = errors.New("segment: not read")

// Users is whose files are read: those of one user and of root, and those of a
// group.
type Users struct {
	UID   uint32
	Also  []uint32 // more users
	Group uint32   // 0: none

	// Open: anybody can make files in the campaign's directory. Whoever
	// makes one there may give it the directory's group, so that a group then says
	// nothing.
	Open bool
}

// Judge returns nil for a file or directory that may be read. Errors match
// ErrRefused.
func (t Users) Judge(st vfs.Stat) error {
	if err := t.Owner(st); err != nil {
		return err
	}
	if st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && !t.inGroup(st) {
		return fmt.Errorf("%w: mode %04o lets others change it; chmod go-w it if nobody did", ErrRefused, st.Mode&0o7777)
	}
	return nil
}

// Owner is Judge without a look at the permissions.
func (t Users) Owner(st vfs.Stat) error {
	if st.UID == t.UID || st.UID == 0 || slices.Contains(t.Also, st.UID) || t.inGroup(st) {
		return nil
	}
	return fmt.Errorf("%w: it belongs to user %d, group %d", ErrRefused, st.UID, st.GID)
}

func (t Users) inGroup(st vfs.Stat) bool { return t.Group != 0 && st.GID == t.Group && !t.Open }

// Refused is what a store did not read because of whose it is.
type Refused struct {
	Files int      // files and directories since Open, each counted once as far as they can be distinguished
	First []string // some of them, each with the reason
}

const (
	// maxRefused bounds the names that are remembered, so that they are counted
	// once.
	maxRefused = 1 << 14

	// Named is how many of them are named to people.
	Named = 3
)

// Guard keeps a store from what strangers put into its directory.
type Guard struct {
	dir  string
	name string // of a file that nobody else makes there

	mu      sync.Mutex
	trust   Users
	exposed bool
	asked   bool // which user the file system takes this one for
	refused Refused
	seen    map[string]struct{}
}

// NewGuard is a guard of the directory dir, which is there. name is that of a file
// which nobody else makes there. Errors match tiers.ErrUnavailable.
func NewGuard(dir, name string, group int) (*Guard, error) {
	g := &Guard{dir: dir, name: name, trust: Users{UID: uint32(os.Geteuid()), Group: uint32(group)}, seen: map[string]struct{}{}}
	st, err := vfs.StatPath(dir)
	if err != nil {
		return nil, fmt.Errorf("lustre: %w: look at the directory of segments: %w", tiers.ErrUnavailable, err)
	}
	g.trust.Open = st.Mode&0o002 != 0
	g.exposed = g.trust.Open && st.Mode&syscall.S_ISVTX == 0
	groups, _ := os.Getgroups()
	if group != 0 && os.Geteuid() != 0 && os.Getegid() != group && !slices.Contains(groups, group) {
		return nil, fmt.Errorf("lustre: %w: share segments with a group: %w: user %d is not in group %d: add the user to it, or name another group",
			tiers.ErrUnavailable, os.ErrPermission, os.Geteuid(), group)
	}
	return g, nil
}

// None trusts everything, and counts what is refused elsewhere.
func None(dir string) *Guard { return &Guard{dir: dir, seen: map[string]struct{}{}} }

// Exposed reports whether anybody can rename and remove what lies in the directory.
func (g *Guard) Exposed() bool { return g.exposed }

// Refused returns what was not read because of whose it is.
func (g *Guard) Refused() Refused {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Refused{g.refused.Files, slices.Clone(g.refused.First)}
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

// FS is the machine's file system as the store sees it.
func (g *Guard) FS(readv vfs.Readv) vfs.OS {
	return vfs.OS{Readv: readv, Check: g.check, Root: g.dir, Group: int(g.trust.Group)}
}

// check is a vfs.OS's.
func (g *Guard) check(path string, st vfs.Stat) error {
	g.mu.Lock()
	trust, asked := g.trust, g.asked
	g.mu.Unlock()
	err := trust.Owner(st)
	if err != nil && !asked {
		trust = g.ask()
	}
	if err = trust.Judge(st); err != nil {
		g.Note(path, err)
	}
	return err
}

// ask finds out which user the file system takes this one for: a server may make
// another of it, as Lustre does of root. It is asked once.
func (g *Guard) ask() Users {
	path := filepath.Join(g.dir, g.name)
	var st vfs.Stat
	f, err := vfs.OS{}.Create(path, 0o600)
	if err == nil {
		st, err = vfs.StatOf(f)
		err = errors.Join(err, f.Close(), vfs.OS{}.Remove(path))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = true
	if err == nil && st.UID != g.trust.UID && !slices.Contains(g.trust.Also, st.UID) {
		g.trust.Also = append(slices.Clone(g.trust.Also), st.UID)
	}
	return g.trust
}

// IsRefused reports whether err means that a file was not read because of whose it
// is, or because it is none.
func IsRefused(err error) bool {
	return slices.ContainsFunc([]error{ErrRefused, vfs.ErrNotRegular, vfs.ErrLoop, vfs.ErrNotDir, syscall.ENXIO}, func(e error) bool { return errors.Is(err, e) })
}

// Note counts what was refused, and reports whether err means that something was.
func (g *Guard) Note(path string, err error) bool {
	if !IsRefused(err) {
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
	if len(g.refused.First) < Named {
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

// HasRefused reports whether anything was refused.
func (g *Guard) HasRefused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused.Files > 0
}
