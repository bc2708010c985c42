package index

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"cascadekv/internal/crc32c"
	files "cascadekv/internal/vfs"
)

// shared are file systems that other nodes see as well (statfs(2)). Locks,
// mapped files and syncs work on them otherwise, or slowly, or not at all.
var shared = []int64{
	files.LustreType, files.GPFSType, files.BeeGFSType, unix.NFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC,
	unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC,
}

func statfsType(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return int64(s.Type) & 0xFFFFFFFF, err
}

// checkLocal refuses directories on shared file systems. Of one that does not
// exist yet the nearest parent that does is asked.
func checkLocal(dir string, fsType func(string) (int64, error)) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for {
		magic, err := fsType(dir)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: statfs %s: %w", ErrUnavailable, dir, err)
		}
		if slices.Contains(shared, magic) {
			return fmt.Errorf("%w: %s is on %s: choose a directory on a local disk or in /dev/shm", ErrSharedFS, dir, files.TypeName(uint32(magic)))
		}
		return nil
	}
}

// Layout of the directory (docs/format.md §5.1).
const (
	headerName = "INDEX"
	headerSize = 64
	magic      = "CASCIDX\n"
	version    = 6

	basePrefix = "base-"
	viewName   = "view"
	lockName   = "LOCK"
)

// dirHeader is the file that describes the directory.
type dirHeader struct {
	campaign [32]byte // SHA-256 of its name
	base     uint64   // number of the database in use
}

func encodeHeader(h dirHeader) []byte {
	p := append(make([]byte, 0, headerSize), magic...)
	p = le.AppendUint32(p, version)
	p = le.AppendUint32(p, 0)
	p = le.AppendUint64(p, h.base)
	p = append(p, h.campaign[:]...)
	p = append(p, 0, 0, 0, 0)
	return le.AppendUint32(p, crc32c.Checksum(p))
}

func decodeHeader(p []byte) (h dirHeader, err error) {
	if len(p) != headerSize || string(p[:8]) != magic || crc32c.Checksum(p[:headerSize-4]) != le.Uint32(p[headerSize-4:]) {
		return h, badFormat("no index header in %d bytes", len(p))
	}
	if v := le.Uint32(p[8:]); v != version {
		return h, badFormat("format version %d, not %d", v, version)
	}
	h.base = le.Uint64(p[16:])
	copy(h.campaign[:], p[24:56])
	return h, nil
}

// home is the directory of an index.
type home struct {
	fs   vfs.FS
	held io.Closer // the lock that keeps other processes out
	dir  string
	head dirHeader
}

func (h *home) base() string {
	return h.fs.PathJoin(h.dir, fmt.Sprintf("%s%d", basePrefix, h.head.base))
}
func (h *home) view() string { return h.fs.PathJoin(h.dir, viewName) }

// openHome reads the header. When there is none, or one of another format or
// campaign, kept is the reason and the home is new.
func openHome(fs vfs.FS, dir, campaign string) (h *home, kept error, err error) {
	if err := syncDir(fs, fs.PathDir(dir)); err != nil {
		return nil, nil, err
	}
	h = &home{fs: fs, dir: dir}
	f, kept := fs.Open(fs.PathJoin(dir, headerName))
	if kept == nil {
		var p []byte
		p, kept = io.ReadAll(io.LimitReader(f, headerSize+1))
		if kept = errors.Join(kept, f.Close()); kept == nil {
			h.head, kept = decodeHeader(p)
		}
	}
	want := sha256.Sum256([]byte(campaign))
	if kept == nil && h.head.campaign != want {
		kept = badFormat("an index of another campaign")
	}
	if kept != nil {
		h.head.campaign = want
		if err := h.renew(); err != nil {
			return nil, kept, err
		}
	}
	h.tidy()
	return h, kept, nil
}

// renew turns to a new, empty database, whose number no other had.
func (h *home) renew() error {
	names, err := h.fs.List(h.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		var n uint64
		if _, err := fmt.Sscanf(name, basePrefix+"%d", &n); err == nil {
			h.head.base = max(h.head.base, n)
		}
	}
	h.head.base++
	return h.writeHeader()
}

// writeHeader replaces the header in one step.
func (h *home) writeHeader() error {
	path := h.fs.PathJoin(h.dir, headerName)
	f, err := h.fs.Create(path+".tmp", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(encodeHeader(h.head))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := h.fs.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(h.fs, h.dir)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// tidy removes databases that are not in use, as far as it can: what is left
// costs space and nothing else. Other files are not touched: they might not be
// ours.
func (h *home) tidy() {
	names, err := h.fs.List(h.dir)
	if err != nil {
		return
	}
	inUse := h.fs.PathBase(h.base())
	for _, name := range names {
		if name == viewName || strings.HasPrefix(name, basePrefix) && name != inUse {
			_ = h.fs.RemoveAll(h.fs.PathJoin(h.dir, name))
		}
	}
}
