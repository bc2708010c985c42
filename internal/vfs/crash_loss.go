package vfs

import (
	"maps"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// Cut is what ends while a Crash is in use.
type Cut int

// The ends that After knows.
const (
	CutProcess Cut = iota // a process is killed: the kernel goes on, nothing is lost
	CutNode               // the client's node: names stay, bytes that were not synced may go
	CutPower              // servers and clients together
)

// After returns what is found after cut, as a file system of its own; c stays as
// it is, so that one moment can be tried with many seeds. What is left to
// chance follows from seed.
func (c *Crash) After(cut Cut, seed uint64) *Crash {
	c.mu.Lock()
	defer c.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, uint64(cut)))
	tree := maps.Clone(c.live)
	if cut == CutPower {
		tree = maps.Clone(c.durable)
		for _, ch := range c.journal[:prefix(rng, len(c.journal))] {
			ch.apply(tree)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		n := tree[path]
		if n.dir {
			continue
		}
		left := content{n.size, maps.Clone(n.pages)}
		if cut != CutProcess {
			left = n.survivors(rng)
		}
		tree[path] = &inode{
			asked: true, size: left.size, pages: left.pages,
			stable: content{left.size, maps.Clone(left.pages)}, dirty: map[int64][][]byte{},
		}
	}
	return &Crash{live: tree, durable: maps.Clone(tree)}
}

// prefix chooses how many of n changes the journal had taken down: often none or
// all of them.
func prefix(rng *rand.Rand, n int) int {
	switch rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return n
	}
	return rng.IntN(n + 1)
}

// survivors chooses what is left of the file when its unsynced pages are lost:
// sometimes all of them, sometimes none, else each by itself.
func (n *inode) survivors(rng *rand.Rand) content {
	switch rng.IntN(4) {
	case 0:
		return content{n.stable.size, maps.Clone(n.stable.pages)}
	case 1:
		return content{n.size, maps.Clone(n.pages)}
	}
	out := content{n.survivingSize(rng), maps.Clone(n.stable.pages)}
	if out.pages == nil {
		out.pages = map[int64][]byte{}
	}
	for _, i := range slices.Sorted(maps.Keys(n.dirty)) {
		switch version := n.dirty[i][rng.IntN(len(n.dirty[i]))]; rng.IntN(4) {
		case 0: // as it was
		case 1:
			out.pages[i] = tear(rng, n.stable.pages[i], version)
		default:
			out.pages[i] = version
		}
	}
	last := out.size / crashPage
	for i, p := range out.pages {
		switch {
		case i > last || i == last && out.size%crashPage == 0:
			delete(out.pages, i)
		case i == last:
			out.pages[i] = append(slices.Clone(p[:out.size%crashPage]), make([]byte, crashPage-out.size%crashPage)...)
		}
	}
	return out
}

// survivingSize chooses a length: the durable one, the present one, or any
// between, on a page's border or off it.
func (n *inode) survivingSize(rng *rand.Rand) int64 {
	if n.size == n.stable.size {
		return n.size
	}
	between := n.stable.size + rng.Int64N(n.size-n.stable.size+1)
	switch rng.IntN(4) {
	case 0:
		return n.stable.size
	case 1:
		return between
	case 2:
		return max(n.stable.size, between&^(crashPage-1))
	}
	return n.size
}

// tear returns a page whose sectors are partly of old and partly of new.
func tear(rng *rand.Rand, old, new []byte) []byte {
	const sector = 512
	p := make([]byte, crashPage)
	copy(p, old)
	for at := 0; at < crashPage; at += sector {
		if rng.IntN(2) == 0 {
			copy(p[at:at+sector], new[at:])
		}
	}
	return p
}

// Evict is what happens when a server has lost sight of this client: pages of
// open and closed files that were not synced are dropped, and the next Sync of
// each such file says so, once. Names stay.
func (c *Crash) Evict(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, 99))
	for _, path := range slices.Sorted(maps.Keys(c.live)) {
		n := c.live[path]
		if n.dir || len(n.dirty) == 0 {
			continue
		}
		left := n.survivors(rng)
		n.size, n.pages, n.lost = left.size, left.pages, unix.EIO
		if n.pages == nil {
			n.pages = map[int64][]byte{}
		}
		n.settleAs(left)
	}
}

func (n *inode) settleAs(left content) {
	n.stable = content{left.size, maps.Clone(left.pages)}
	clear(n.dirty)
}

// Flip changes the bits of mask in one byte of a file, on disk and in memory,
// as a bad disk or controller does: silently.
func (c *Crash) Flip(path string, off int64, mask byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, n, err := c.file("flip", path)
	if err != nil {
		return err
	}
	if off < 0 || off >= n.size {
		return pathErr("flip", path, unix.EINVAL)
	}
	page := make([]byte, crashPage)
	copy(page, n.pages[off/crashPage])
	page[off%crashPage] ^= mask
	n.pages[off/crashPage] = page
	n.settleAs(content{n.size, n.pages})
	return nil
}
