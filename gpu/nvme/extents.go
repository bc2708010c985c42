package nvme

import (
	"context"
	"fmt"
	"os"

	"cascadekv/gpu/store"
	"cascadekv/internal/vfs"
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
// the page cache where the tier goes past it. It waits for the disks until ctx ends. The caller closes them. Errors: tiers.ErrUnavailable.
func (t *Tier) Containers(ctx context.Context) (files []*os.File, err error) {
	paths := t.store.Containers()
	return t.opener.open(ctx, len(paths), func(i int) (vfs.File, error) {
		if paths[i] == "" {
			return nil, nil
		}
		return t.o.FS.Open(paths[i])
	})
}

// Probe reads from each disk, and reports whether that can be done. It waits for the disks. Errors: tiers.ErrUnavailable, tiers.ErrClosed.
func (t *Tier) Probe() error { return t.store.Probe() }

// opener opens files for others.
type opener struct {
	direct bool          // past the page cache
	busy   chan struct{} // of capacity 1: has a token while files are opened
}

// open opens n files, until ctx ends. They are opened by one goroutine at a time: where a disk hangs that one waits for it, and all
// others for their turn.
func (o opener) open(ctx context.Context, n int, open func(i int) (vfs.File, error)) ([]*os.File, error) {
	late := func() error {
		return fmt.Errorf("%s: %w: the disks have not opened their files: %w", Name, tiers.ErrUnavailable, context.Cause(ctx))
	}
	select {
	case o.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, late()
	}
	files, isLate, err := vfs.Within(ctx, func() ([]*os.File, error) {
		defer func() { <-o.busy }()
		return o.each(ctx, n, open)
	}, closeFiles)
	switch {
	case isLate:
		return nil, late()
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", Name, tiers.ErrUnavailable, err)
	}
	return files, nil
}

func (o opener) each(ctx context.Context, n int, open func(i int) (vfs.File, error)) ([]*os.File, error) {
	files := make([]*os.File, n)
	for i := range files {
		err := context.Cause(ctx)
		if err == nil {
			files[i], err = o.one(i, open)
		}
		if err != nil {
			closeFiles(files)
			return nil, err
		}
	}
	return files, nil
}

// one opens a file and keeps a descriptor of it, nil for none.
func (o opener) one(i int, open func(i int) (vfs.File, error)) (*os.File, error) {
	f, err := open(i)
	if f == nil || err != nil {
		return nil, err
	}
	if o.direct {
		_, _ = vfs.SetDirect(f) // a file system may have only its cache
	}
	file, err := vfs.Duplicate(f)
	_ = f.Close() // nothing was written
	return file, err
}

// closeFiles closes files that nothing was written to; nil is none.
func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
