package vfstest

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Cut is what ends while a Crash is in use.
type Cut int

// The ends for After.
const (
	// CutProcess is the end of a process. Nothing is lost yet: what it did not
	// sync is in the kernel's memory, for a later end to take.
	CutProcess Cut = iota
	// CutNode is the end of the client's node. Names stay, as the servers have
	// heard of them; bytes that were not synced may go.
	CutNode
	// CutPower is the end of servers and clients together.
	CutPower
)

// After returns what is found after cut, as a file system of its own; c stays as
// it is, so that one moment can be tried with many seeds. What is left to
// chance follows from seed.
func (c *Crash) After(cut Cut, seed uint64) *Crash {
	c.mu.Lock()
	defer c.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, uint64(cut)))
	tree, out := c.live, &Crash{}
	if cut == CutPower {
		tree = maps.Clone(c.durable)
		for _, ch := range c.journal[:prefix(rng, len(c.journal))] {
			ch.apply(tree)
		}
	}
	again := map[*inode]*inode{nil: nil}
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		again[tree[path]] = tree[path].after(cut, rng)
	}
	copied := func(n *inode) *inode {
		if _, ok := again[n]; !ok {
			again[n] = n.after(cut, rng)
		}
		return again[n]
	}
	out.live = copyTree(tree, copied)
	if cut == CutPower {
		out.durable = maps.Clone(out.live)
		return out
	}
	out.durable = copyTree(c.durable, copied)
	for _, ch := range c.journal {
		out.journal = append(out.journal, change{ch.path, copied(ch.node), ch.from})
	}
	return out
}

func copyTree(tree map[string]*inode, copied func(*inode) *inode) map[string]*inode {
	out := map[string]*inode{}
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		out[path] = copied(tree[path])
	}
	return out
}

// after returns what is left of n. Another client than the one that wrote it
// has not asked the metadata server about it, but a power cut leaves nothing
// to ask for.
func (n *inode) after(cut Cut, rng *rand.Rand) *inode {
	switch {
	case n.dir:
		return n
	case cut == CutProcess:
		out := *n
		out.pages, out.dirty = maps.Clone(n.pages), maps.Clone(n.dirty)
		return &out
	}
	left := n.survivors(rng)
	out := &inode{size: left.size, pages: left.pages, dirty: map[int64][][]byte{}, asked: cut == CutPower}
	out.settleAs(left)
	return out
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
// each such file reports it, once. Names stay.
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
		return &os.PathError{Op: "flip", Path: path, Err: unix.EINVAL}
	}
	page := make([]byte, crashPage)
	copy(page, n.pages[off/crashPage])
	page[off%crashPage] ^= mask
	n.pages[off/crashPage] = page
	n.settleAs(content{n.size, n.pages})
	return nil
}
