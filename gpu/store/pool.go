package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"cascadekv/internal/vfs"
)

const (
	containerPrefix, containerSuffix = "pool-", ".kv"
	prewriteBytes                    = 4 << 20
)

func containerName(number int) string {
	return fmt.Sprintf("%s%06d%s", containerPrefix, number, containerSuffix)
}

// pool is the containers, by number. A group is those of the same GPU files; it is ready once all of
// them are there.
type pool struct {
	fs     vfs.FS
	dirs   []string
	head   header
	wanted int           // GPU files
	files  []vfs.File    // nil where a group is not ready
	fresh  int           // the group that openPool made; -1: none
	grown  chan struct{} // closed when no more groups are made
}

// openPool opens the containers that are there, of as many GPU files as are wanted. If no group is
// there it makes the first. What nobody uses any more is removed first. Errors: those of the file system, the
// context's; vfs.ErrNoSpace with no group at all.
func openPool(ctx context.Context, fs vfs.FS, dirs []string, head header, wanted int) (*pool, error) {
	groups := (wanted + head.layout.each - 1) / head.layout.each
	p := &pool{fs: fs, dirs: dirs, head: head, wanted: wanted, files: make([]vfs.File, groups*len(dirs)), fresh: -1, grown: make(chan struct{})}
	for d := range dirs {
		if err := p.clean(d, groups); err != nil {
			return nil, err
		}
	}
	ready := false
	for g := range groups {
		all, err := p.open(g)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.set(g, all)
		ready = ready || all != nil
	}
	if ready {
		return p, nil
	}
	all, err := p.make(ctx, 0)
	if err != nil {
		return nil, err
	}
	p.set(0, all)
	p.fresh = 0
	return p, nil
}

// groups returns how many are wanted.
func (p *pool) groups() int { return len(p.files) / len(p.dirs) }

// group returns the GPU files of a group that are wanted, from first to before end.
func (p *pool) group(g int) (first, end int) {
	return min(g*p.head.layout.each, p.wanted), min((g+1)*p.head.layout.each, p.wanted)
}

// ready reports whether all containers of a group are there.
func (p *pool) ready(group int) bool { return p.files[group*len(p.dirs)] != nil }

// last returns the last group that is ready, -1 for none.
func (p *pool) last() int {
	for g := p.groups() - 1; g >= 0; g-- {
		if p.ready(g) {
			return g
		}
	}
	return -1
}

// set has the containers of a group, nil for none.
func (p *pool) set(group int, all []vfs.File) {
	copy(p.files[group*len(p.dirs):][:len(p.dirs)], all)
}

// open opens a group of which all containers are there, nil if they are not.
func (p *pool) open(group int) (all []vfs.File, err error) {
	for d := range p.dirs {
		number := group*len(p.dirs) + d
		f, err := p.fs.Reopen(p.path(number))
		if err != nil || !p.belongs(f, number) {
			if err == nil {
				err = f.Close()
			} else {
				err = nil // make finds out what is the matter
			}
			return nil, closeAll(all, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// make opens a group, and makes what of it is not there or of another pool. If it fails nothing of the group is
// left: where the disk is full, the log has that room.
func (p *pool) make(ctx context.Context, group int) (all []vfs.File, err error) {
	for d := range p.dirs {
		f, err := p.container(ctx, group*len(p.dirs)+d)
		if err != nil {
			return nil, p.remove(group, all, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// remove closes the open containers of a group and removes all of it, and adds what fails to err.
func (p *pool) remove(group int, open []vfs.File, err error) error {
	err = closeAll(open, err)
	for d := range p.dirs {
		err = errors.Join(err, drop(p.fs, p.path(group*len(p.dirs)+d)))
	}
	return err
}

// giveUp removes a group that is ready.
func (p *pool) giveUp(group int) error {
	at := group * len(p.dirs)
	err := p.remove(group, p.files[at:at+len(p.dirs)], nil)
	clear(p.files[at : at+len(p.dirs)])
	return err
}

func closeAll(files []vfs.File, err error) error {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}

func (p *pool) path(number int) string {
	return filepath.Join(p.dirs[number%len(p.dirs)], containerName(number))
}

func isFull(err error) bool { return errors.Is(err, vfs.ErrNoSpace) || errors.Is(err, vfs.ErrQuota) }

// clean removes the containers of a directory that this pool does not have, and
// what was not finished.
func (p *pool) clean(dir, groups int) error {
	names, err := p.fs.ReadDir(p.dirs[dir])
	for _, name := range names {
		text, ours := strings.CutPrefix(name, containerPrefix)
		text, whole := strings.CutSuffix(strings.TrimSuffix(text, unfinished), containerSuffix)
		number, bad := strconv.Atoi(text)
		if !ours || !whole || bad != nil {
			continue
		}
		if strings.HasSuffix(name, unfinished) || number%len(p.dirs) != dir || number >= groups*len(p.dirs) {
			err = errors.Join(err, p.fs.Remove(filepath.Join(p.dirs[dir], name)))
		}
	}
	return err
}

// logShare is how many bytes of its disk are left for logs, for each byte that the blocks of a full pool take
// there: a new one is written beside an old one, with notes.
const logShare = 8

// room returns whether a container more leaves the logs their room. The first has to be there.
func (p *pool) room(number int) error {
	if number < len(p.dirs) {
		return nil
	}
	left := p.head.layout.containerBytes()
	if number%len(p.dirs) == 0 {
		left += logShare * int64(p.wanted) * int64(recordBytes+4*p.head.layout.objects)
	}
	s, err := p.fs.Statfs(p.dirs[number%len(p.dirs)])
	if err == nil && s.Free < left {
		return fmt.Errorf("%w: %d bytes are free, a container and what the log may take are %d", vfs.ErrNoSpace, s.Free, left)
	}
	return nil
}

// container opens one container, or makes it. It is renamed before its first fsync, as a log is.
func (p *pool) container(ctx context.Context, number int) (vfs.File, error) {
	path := p.path(number)
	f, err := p.fs.Reopen(path)
	if err == nil {
		if p.belongs(f, number) {
			return f, nil
		}
		if err := errors.Join(f.Close(), p.fs.Remove(path)); err != nil {
			return nil, err
		}
	}
	if err := p.room(number); err != nil {
		return nil, err
	}
	if err := drop(p.fs, path+unfinished); err != nil { // of a group that was given up half-way
		return nil, err
	}
	if f, err = p.fs.Create(path+unfinished, 0o600); err != nil {
		return nil, err
	}
	if err = p.prewrite(ctx, f, number); err == nil {
		err = p.fs.Rename(path+unfinished, path)
	}
	if err == nil {
		err = f.Sync() // a disk that is full may say so here only
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), drop(p.fs, path+unfinished), drop(p.fs, path))
	}
	return f, nil
}

// belongs reports whether a container is the one with that number of this pool. It may be longer: who wrote to it by itself could do
// that.
func (p *pool) belongs(f vfs.File, number int) bool {
	size, err := f.Size()
	first := make([]byte, page)
	if err == nil {
		_, err = f.Pread(first, 0)
	}
	if err != nil || size < p.head.layout.containerBytes() {
		return false
	}
	h, err := decodeHeader(first, containerMagic)
	return err == nil && h.pool == p.head.pool && h.layout == p.head.layout && h.number == uint32(number)
}

// header is the first page of a container.
func (p *pool) header(number int) []byte {
	h := p.head
	h.magic, h.number, h.generation = containerMagic, uint32(number), 0
	return h.encode()
}

// mend writes the header of a container again that is not as it has to be.
func (p *pool) mend(f vfs.File, number int) error {
	if p.belongs(f, number) {
		return nil
	}
	_, err := f.Pwrite(p.header(number), 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil && !p.belongs(f, number) {
		err = fmt.Errorf("%w: %s", errFormat, p.path(number))
	}
	return err
}

// probe reads the header of a container, and writes it again if write is true.
func (p *pool) probe(f vfs.File, number int, write bool) error {
	_, err := f.Pread(make([]byte, page), 0)
	if err == nil && write {
		_, err = f.Pwrite(p.header(number), 0)
	}
	return err
}

// prewrite writes all of a container, so that no transfer allocates: blocks that were never written
// cost the file system metadata at their first write.
func (p *pool) prewrite(ctx context.Context, f vfs.File, number int) error {
	if _, err := f.Pwrite(p.header(number), 0); err != nil {
		return err
	}
	zeros := make([]byte, prewriteBytes)
	for at, end := int64(page), p.head.layout.containerBytes(); at < end; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := f.Pwrite(zeros[:min(end-at, prewriteBytes)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

func (p *pool) close() (err error) {
	for _, f := range p.files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	clear(p.files)
	return err
}
