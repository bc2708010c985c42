package nvme

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/store"
	"cascadekv/tiers"
)

// Extents returns where the block lies on the disks, in the order of its bytes, and keeps it there until release is called:
// for whoever reads it by itself, and verifies it. The files are those of Tier.Containers, by their number. False while the
// block is not on the disk alone, or when a part of it is gone.
func (p *pin) Extents() (all []store.Extent, release func(), ok bool) {
	p.t.mu.Lock()
	onDisk := p.b.mem == nil
	p.t.mu.Unlock()
	if !onDisk {
		return nil, nil, false
	}
	n := p.t.files(p.size)
	g, err := p.t.store.Retrieve(p.t.parts(p.b, 0, n))
	if err != nil {
		return nil, nil, false
	}
	for i := int64(0); i < n && g.Blocks() == int(n) && err == nil; i++ {
		all, err = g.Extents(all, int(i), p.t.partSize(p.size, i))
	}
	if err != nil || g.Blocks() < int(n) {
		g.Close()
		return nil, nil, false
	}
	return all, func() { g.Close() }, true
}

// Containers opens the files that blocks lie in, by their number, nil where one is not ready yet: for reading alone, past
// the page cache where the tier goes past it. The caller closes them. Errors: tiers.ErrUnavailable.
func (t *Tier) Containers() (files []*os.File, err error) {
	paths := t.store.Containers()
	files = make([]*os.File, len(paths))
	for i, path := range paths {
		if path == "" {
			continue
		}
		if files[i], err = t.openContainer(path, unix.O_RDONLY); err != nil {
			for _, f := range files[:i] {
				_ = f.Close() // read-only
			}
			return nil, fmt.Errorf("%s: %w: %w", Name, tiers.ErrUnavailable, err)
		}
	}
	return files, nil
}

func (t *Tier) openContainer(path string, mode int) (*os.File, error) {
	if t.o.Direct {
		f, err := os.OpenFile(path, mode|unix.O_DIRECT|unix.O_NOFOLLOW, 0)
		if !errors.Is(err, unix.EINVAL) { // of a file system that has only its cache
			return f, err
		}
	}
	return os.OpenFile(path, mode|unix.O_NOFOLLOW, 0)
}
