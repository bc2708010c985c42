package arena

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// hugePages is the length of a huge page, in pages.
const hugePages = hugePage / Page

// lentTag is the tag of the first page of a huge page that was lent. It is no
// slab's, with or without recordTag.
const lentTag = 0x7f

// wholeHugePages reports whether a payload of size bytes wants to lie in huge pages
// that it shares with nobody.
func wholeHugePages(size int64) bool { return size > 0 && size%hugePage == 0 }

// eachHugePage calls fn for the first page of each huge page that lies in
// [off, off+size) as a whole, until fn returns false.
func (a *Allocator) eachHugePage(off, size int64, fn func(page int64) bool) {
	origin := a.Origin / Page
	end := min((off+size)/Page, a.pages)
	first := (off + Page - 1) / Page
	first += (hugePages - (first+origin)%hugePages) % hugePages
	for p := first; p+hugePages <= end; p += hugePages {
		if !fn(p) {
			return
		}
	}
}

// MarkLent marks the huge pages of a range that Alloc handed out as lent: somebody
// may look at them for as long as he likes, so they must not be written again
// before Restore. It returns false, and marks nothing, unless the range is made
// of whole huge pages.
func (a *Allocator) MarkLent(off, size int64) bool {
	if !wholeHugePages(size) || (a.Origin+off)%hugePage != 0 {
		return false
	}
	a.eachHugePage(off, size, func(p int64) bool { a.tags[p] = lentTag; return true })
	return true
}

// IsLent reports whether any huge page in the room of size bytes at off is lent.
func (a *Allocator) IsLent(off, size int64) (lent bool) {
	a.eachHugePage(off, RoundSize(size), func(p int64) bool {
		lent = a.tags[p] == lentTag
		return !lent
	})
	return lent
}

// Restore takes the marks of MarkLent from a room, whose memory is new now.
func (a *Allocator) Restore(off, size int64) {
	a.eachHugePage(off, RoundSize(size), func(p int64) bool {
		if a.tags[p] == lentTag {
			a.tags[p] = 0
		}
		return true
	})
}

// TakeLent hands out, after Adopt, each huge page that an earlier process lent
// and that nothing is in.
func (a *Allocator) TakeLent() (rooms []Extent) {
	a.eachHugePage(0, a.Size(), func(p int64) bool {
		if a.tags[p] == lentTag && a.runs.takeAt(p, hugePages) {
			a.used += hugePage
			rooms = append(rooms, Extent{p * Page, hugePage})
		}
		return true
	})
	return rooms
}

// Replace gives the bytes [off, off+n) of a file new memory, of zeros. Whoever
// still refers to the memory they had, a pipe or a socket, keeps that as it is.
// After an error the bytes must not be touched; Replace may be tried again.
// Errors: as Commit.
func (m *Mapping) Replace(off, n int64) error {
	if err := m.Drop(off, n); err != nil {
		return err
	}
	return m.Commit(off, n)
}

// Drop gives up contents and memory of the bytes [off, off+n) of a file, whose
// size stays. They must not be touched before the next Commit.
func (m *Mapping) Drop(off, n int64) error {
	if err := unix.Fallocate(m.Fd(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n); err != nil {
		return fmt.Errorf("arena: give up %d bytes at %d of %s: %w", n, off, m.file.Name(), err)
	}
	return nil
}

// Lends reports whether the memory of this mapping can be lent and replaced: that
// of files in memory can.
func (m *Mapping) Lends() bool {
	if m.file == nil {
		return false
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(m.Fd(), &fs) == nil && fs.Type == unix.TMPFS_MAGIC
}
