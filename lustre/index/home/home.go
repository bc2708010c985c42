package home

import (
	"crypto/sha256"
	"encoding/binary"
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

// Shared are file systems that other nodes see as well (statfs(2)). Locks,
// mapped files and syncs work on them otherwise, or slowly, or not at all.
var Shared = []int64{
	files.LustreType, files.GPFSType, files.BeeGFSType, unix.NFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC,
	unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC,
}

// StatfsType is the type of the file system that a directory is on.
func StatfsType(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return int64(s.Type) & 0xFFFFFFFF, err
}

// CheckLocal refuses directories on shared file systems. Of one that does not
// exist yet the nearest parent that does is asked.
func CheckLocal(dir string, fsType func(string) (int64, error)) error {
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
		if slices.Contains(Shared, magic) {
			return fmt.Errorf("%w: %s is on %s: choose a directory on a local disk or in /dev/shm", ErrSharedFS, dir, files.TypeName(uint32(magic)))
		}
		return nil
	}
}

// Errors of Open and CheckLocal.
var (
	ErrUnavailable = errors.New("index: directory cannot be used")
	ErrSharedFS    = errors.New("index: directory is not on node-local storage")
	ErrBadFormat   = errors.New("index: not a record of this version of the format")
)

func badFormat(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadFormat, fmt.Sprintf(format, args...))
}

var le = binary.LittleEndian

// Layout of the directory.
const (
	HeaderName = "INDEX"
	HeaderSize = 64
	LockName   = "LOCK" // the file whose lock keeps other processes out
	Version    = 6      // of the format of everything in it

	magic      = "CASCIDX\n"
	basePrefix = "base-"
	viewName   = "view"
)

// header is the file that describes the directory.
type header struct {
	campaign [32]byte // SHA-256 of its name
	base     uint64   // number of the database in use
}

func encode(h header) []byte {
	p := append(make([]byte, 0, HeaderSize), magic...)
	p = le.AppendUint32(p, Version)
	p = le.AppendUint32(p, 0)
	p = le.AppendUint64(p, h.base)
	p = append(p, h.campaign[:]...)
	p = append(p, 0, 0, 0, 0)
	return le.AppendUint32(p, crc32c.Checksum(p))
}

func decode(p []byte) (h header, err error) {
	if len(p) != HeaderSize || string(p[:8]) != magic || crc32c.Checksum(p[:HeaderSize-4]) != le.Uint32(p[HeaderSize-4:]) {
		return h, badFormat("no index header in %d bytes", len(p))
	}
	if v := le.Uint32(p[8:]); v != Version {
		return h, badFormat("format version %d, not %d", v, Version)
	}
	h.base = le.Uint64(p[16:])
	copy(h.campaign[:], p[24:56])
	return h, nil
}

// Home is the directory of an index, of which no other process has the lock.
type Home struct {
	fs   vfs.FS
	dir  string
	head header
}

// Base is where the database in use lies.
func (h *Home) Base() string {
	return h.fs.PathJoin(h.dir, fmt.Sprintf("%s%d", basePrefix, h.head.base))
}

// View is where a copy of it lies, while it is opened anew.
func (h *Home) View() string { return h.fs.PathJoin(h.dir, viewName) }

// Open reads the header. When there is none, or one of another format or
// campaign, kept is the reason and the home is new.
func Open(fs vfs.FS, dir, campaign string) (h *Home, kept error, err error) {
	if err := syncDir(fs, fs.PathDir(dir)); err != nil {
		return nil, nil, err
	}
	h = &Home{fs: fs, dir: dir}
	f, kept := fs.Open(fs.PathJoin(dir, HeaderName))
	if kept == nil {
		var p []byte
		p, kept = io.ReadAll(io.LimitReader(f, HeaderSize+1))
		if kept = errors.Join(kept, f.Close()); kept == nil {
			h.head, kept = decode(p)
		}
	}
	want := sha256.Sum256([]byte(campaign))
	if kept == nil && h.head.campaign != want {
		kept = badFormat("an index of another campaign")
	}
	if kept != nil {
		h.head.campaign = want
		if err := h.Renew(); err != nil {
			return nil, kept, err
		}
	}
	h.Tidy()
	return h, kept, nil
}

// Renew turns to a new, empty database, whose number no other had.
func (h *Home) Renew() error {
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
func (h *Home) writeHeader() error {
	path := h.fs.PathJoin(h.dir, HeaderName)
	f, err := h.fs.Create(path+".tmp", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(encode(h.head))
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

// Tidy removes databases that are not in use, as far as it can: what is left
// costs space and nothing else. Other files are not touched: they might not be
// ours.
func (h *Home) Tidy() {
	names, err := h.fs.List(h.dir)
	if err != nil {
		return
	}
	inUse := h.fs.PathBase(h.Base())
	for _, name := range names {
		if name == viewName || strings.HasPrefix(name, basePrefix) && name != inUse {
			_ = h.fs.RemoveAll(h.fs.PathJoin(h.dir, name))
		}
	}
}
