package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
)

// errGone is the error when somebody removed a file in which something was to be kept.
var errGone = errors.New("segment: somebody has removed or renamed the file: leave a campaign's directory alone while ranks run")

// Missing looks whether the segments that this run wrote, or owns, are where they
// were. It forgets the blocks of those that are not, and returns these: what can be
// read of such a file goes with its last descriptor, and no later run finds it. Such
// files get no more frames, and a directory that is gone is made anew. It costs a
// listing of each directory that has such files. Errors: ErrUnavailable, when
// nothing is known; ErrClosed.
func (s *Store) Missing(ctx context.Context) ([]block.ID, error) {
	var lost []block.ID
	err := s.readJob(ctx, "look for segments that are gone", func() (err error) {
		lost, err = s.missing()
		return err
	})
	if err != nil {
		return nil, err // what runs on may still set lost
	}
	return lost, nil
}

func (s *Store) missing() ([]block.ID, error) {
	if err := s.sameFileSystem(s.fs, s.opt.Dir); err != nil {
		return nil, err
	}
	gone := map[*file]bool{}
	for dir, files := range s.written() {
		names, err := vfs.Absent(s.fs, dir, slices.Collect(maps.Keys(files)))
		if errors.Is(err, os.ErrNotExist) {
			s.lease.DirGone(dir)
		} else if err != nil {
			return nil, unavailable("look for segments that are gone", err)
		}
		for _, name := range names {
			gone[files[name]] = true
		}
	}
	lost := s.giveUpGone(gone)
	if len(gone) == 0 {
		return lost, nil
	}
	for f := range gone {
		s.indexGone(f, f.where())
	}
	if _, _, err := s.lease.OwnDir(context.Background()); err != nil {
		return lost, unavailable("make the directory of segments anew", err)
	}
	return lost, nil
}

// Gone is that of tiers.Files, for the directory of s.
func Gone(ctx context.Context, s *Store, paths ...string) ([]string, error) {
	var gone []string
	dirs := map[string][]string{}
	for _, p := range paths {
		if _, ok := format.ParsePath(p); ok {
			dirs[filepath.Dir(p)] = append(dirs[filepath.Dir(p)], filepath.Base(p))
		} else {
			gone = append(gone, p)
		}
	}
	err := s.readJob(ctx, "look for segments of others that are gone", func() error {
		if err := s.sameFileSystem(s.fs, s.opt.Dir); err != nil {
			return err
		}
		for dir, names := range dirs {
			names, err := vfs.Absent(s.fs, filepath.Join(s.opt.Dir, dir), names)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return unavailable("look for segments of others that are gone", err)
			}
			for _, name := range names {
				gone = append(gone, filepath.Join(dir, name))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err // what runs on may still append
	}
	return gone, nil
}

// sameFileSystem makes sure that the directory was not taken away as a whole, with
// what it lay on: then all comes back.
func (x *index) sameFileSystem(fs vfs.FS, dir string) error {
	space, err := fs.Statfs(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return unavailable("look for segments that are gone", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mounted == 0 {
		x.mounted = space.Type
	}
	if x.mounted != space.Type {
		return unavailable("look for segments that are gone", fmt.Errorf("%s is on %s now, and was on %s: mount it again", dir,
			vfs.TypeName(uint32(space.Type)), vfs.TypeName(uint32(x.mounted))))
	}
	return nil
}

// giveUpGone forgets files that are gone, and returns the blocks that were in them, and those
// that reads did not find and that were not put again. Of each name whose newest record was
// there older ones may lie in other files: they are withdrawn.
func (s *Store) giveUpGone(gone map[*file]bool) (lost []block.ID) {
	for f := range gone {
		_ = f.fail(errGone) // who waits for an fsync gets it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	lost, s.dropped = slices.DeleteFunc(s.dropped, func(id block.ID) bool { return s.blocks[id] != nil }), nil
	if len(gone) == 0 {
		return lost
	}
	for f := range gone {
		if f.removing || f.gone { // it was emptied meanwhile, or another was here
			delete(gone, f)
			continue
		}
		f.gone, f.done, f.size = true, true, 0
		if s.current == f {
			s.current = nil
		}
	}
	for id, loc := range s.blocks {
		if gone[loc.file] {
			lost = append(lost, id)
			s.forgetLocked(loc)
		}
	}
	for f := range gone {
		s.waiting = append(s.waiting, s.withdrawRecordsLocked(f)...)
		f.spill.out = false
	}
	s.reclaimSoonLocked()
	return lost
}
