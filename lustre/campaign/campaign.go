package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/lustre/segment/trust"
)

// Errors of the package, always wrapped with what happened to what. Test with
// errors.Is.
var (
	ErrNoCampaign = errors.New("campaign: cannot be read")
	ErrBadStream  = errors.New("campaign: not a stream that export wrote")
	ErrCutOff     = errors.New("campaign: the stream ends early")
)

// Options say where a campaign is and how to work on it. The zero value of
// every field but Dir is useful.
type Options struct {
	Dir string

	// Jobs is how many segments are read at once. Default 4: enough to keep
	// two cores and a few servers busy, few enough to leave the campaign's ranks
	// their share.
	Jobs int

	// Quiet is for how long a segment without footer must not have changed
	// until it counts as left behind by a crash. Default 24 hours: a rank that
	// nobody uses at night adds nothing to its segment.
	Quiet time.Duration

	// Progress, when not nil, is called with how many bytes of how many were read. It
	// is called from several goroutines, one at a time.
	Progress func(done, total int64)

	// Group is the group that shares the campaign (lustre.group), 0 for none.
	// What belongs neither to it nor to this user, to root, or, when root asks,
	// to the owner of Dir, is not read.
	Group uint32

	FS    vfs.FS                                 // default vfs.OS
	Lstat func(path string) (fs.FileInfo, error) // default os.Lstat
	Chmod func(path string, mode fs.FileMode) error
	// Writers returns the segments, as directory/name, that processes of this
	// machine have open for writing. The default looks in /proc.
	Writers func() map[string]bool
	Now     func() time.Time // default time.Now

	trust trust.Users
}

// withBuffers calls fn with memory to read and to write through.
func withBuffers(fn func(in, out []byte) error) error {
	scratch := vfs.NewScratch(bufferSize, 2)
	defer scratch.Close()
	in, err := scratch.Get()
	if err != nil {
		return err
	}
	defer scratch.Put(in)
	out, err := scratch.Get()
	if err != nil {
		return err
	}
	defer scratch.Put(out)
	return fn(in, out)
}

// bufferSize is what one job reads and writes through: large enough for the
// bandwidth of one stream, small enough for a core's cache.
const bufferSize = 1 << 20

func (o *Options) setDefaults() {
	o.Jobs = cmp.Or(max(o.Jobs, 0), 4)
	o.Quiet = cmp.Or(max(o.Quiet, 0), 24*time.Hour)
	o.trust = o.trusted()
	if o.FS == nil {
		trust := o.trust
		o.FS = vfs.OS{Root: o.Dir, Group: int(o.Group), Check: func(_ string, st vfs.Stat) error { return trust.Owner(st) }}
	}
	if o.Lstat == nil {
		o.Lstat = os.Lstat
	}
	if o.Chmod == nil {
		o.Chmod = chmod
	}
	if o.Writers == nil {
		o.Writers = func() map[string]bool { return writers("/proc") }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// chmod does not follow a symbolic link.
func chmod(path string, mode fs.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// What a name in the campaign can be.
const (
	isForeign  = iota // nothing of ours
	isSegment         // what readers read
	isTemp            // a segment that was never published
	isDamaged         // what a repair moved aside
	isToken           // what names the owner of a directory
	isUnlisted        // a directory that cannot be listed
	isStrange         // a file or directory of somebody else
)

// item is one name below the campaign's directory.
type item struct {
	path string // relative to it
	kind int
	id   format.FileID
	info fs.FileInfo
	err  error

	token lease.Token // of a token
}

// listing is everything that lies in a campaign, in the order in which readers
// see it.
type listing struct {
	dirs  []item // of incarnations
	files []item
}

// list reads the directories. Names that vanish meanwhile are left out. Errors
// match ErrNoCampaign.
func (o *Options) list() (*listing, error) {
	names, err := o.FS.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; name the directory that holds rankNNN-… directories", ErrNoCampaign, err)
	}
	if _, one := format.ParseDir(filepath.Base(o.Dir)); one {
		return nil, fmt.Errorf("%w: %s holds the segments of one run of one rank; name the directory above it", ErrNoCampaign, o.Dir)
	}
	l := &listing{}
	for _, name := range names {
		part, ok := format.ParseDir(name)
		it := item{path: name, id: format.FileID{Rank: part.Rank, Incarnation: part.Incarnation}}
		it.info, it.err = o.Lstat(filepath.Join(o.Dir, name))
		switch {
		case errors.Is(it.err, os.ErrNotExist):
		case !ok, it.err == nil && (!it.info.IsDir() || o.isStranger(&it)):
			l.files = append(l.files, it)
		default:
			l.dirs = append(l.dirs, it)
			l.files = append(l.files, o.listDir(it)...)
		}
	}
	return l, nil
}

func (o *Options) listDir(dir item) []item {
	names, err := o.FS.ReadDir(filepath.Join(o.Dir, dir.path))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return []item{{path: dir.path, kind: isUnlisted, err: err}}
	}
	var items []item
	for _, name := range names {
		it := item{path: filepath.Join(dir.path, name)}
		it.kind, it.id = classify(name, dir.id)
		it.info, it.err = o.Lstat(filepath.Join(o.Dir, it.path))
		if errors.Is(it.err, os.ErrNotExist) {
			continue
		}
		if token, ok := lease.ParseToken(name); ok {
			it.kind, it.token = isToken, token
		}
		if it.err == nil && !it.info.Mode().IsRegular() {
			it.kind = isForeign
		} else if it.err == nil && it.kind != isForeign {
			o.isStranger(&it)
		}
		items = append(items, it)
	}
	return items
}

var asideName = regexp.MustCompile(`^(.*)\.damaged(\.[0-9]+)?$`)

// classify returns what a file's name in an incarnation's directory means.
func classify(name string, dir format.FileID) (kind int, id format.FileID) {
	kind, base := isSegment, name
	if b := temporaryOf(name); b != "" {
		kind, base = isTemp, b
	} else if m := asideName.FindStringSubmatch(name); m != nil {
		kind, base = isDamaged, m[1]
	}
	id, ok := format.ParseName(base)
	if !ok || id.Rank != dir.Rank {
		return isForeign, format.FileID{}
	}
	id.Incarnation = dir.Incarnation
	return kind, id
}

// temporaryOf returns the name that a temporary file is to have in the end, ""
// when it is none.
func temporaryOf(name string) string {
	for _, suffix := range []string{tmpSuffix, partSuffix} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			return base
		}
	}
	return ""
}

// mayHaveWriter reports whether a process may still add to an unsealed segment.
// Nothing proves that none does: a rank may be on any node, and locks do not
// reach across Lustre. So what is open here, or has changed lately, counts, and
// so does what lies in a directory whose owner lives.
func (o *Options) mayHaveWriter(it item, open, owned map[string]bool) bool {
	return owned[filepath.Dir(it.path)] || open[filepath.ToSlash(it.path)] || o.Now().Sub(it.info.ModTime()) < o.Quiet
}

// errAllDone ends the context of each.
var errAllDone = errors.New("all done")

// each calls fn for 0 to n-1, up to Jobs at a time, each with memory to read
// through, and returns the first error or ctx's without waiting for the others.
func (o *Options) each(ctx context.Context, n int, fn func(i int, buf []byte) error) error {
	scratch := vfs.NewScratch(bufferSize, o.Jobs)
	running, stop := context.WithCancelCause(ctx)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(o.Jobs, n) {
		workers.Go(func() {
			buf, err := scratch.Get()
			if err == nil {
				defer scratch.Put(buf)
			}
			for i := int(next.Add(1)) - 1; err == nil && i < n && running.Err() == nil; i = int(next.Add(1)) - 1 {
				err = fn(i, buf)
			}
			if err != nil {
				stop(err)
			}
		})
	}
	go func() {
		workers.Wait()
		scratch.Close()
		stop(errAllDone)
	}()
	<-running.Done()
	if err := context.Cause(running); err != errAllDone {
		return err
	}
	return ctx.Err()
}

// meter adds up progress of several jobs.
type meter struct {
	mu     sync.Mutex
	done   int64
	total  int64
	report func(done, total int64)
}

func (m *meter) add(n int64) {
	if m == nil || m.report == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.report(min(m.done, m.total), m.total)
}
