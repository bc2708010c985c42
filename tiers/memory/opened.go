package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"cascadekv/internal/arena"
	"cascadekv/tiers"
)

// Opened reports what Open found at the place of an arena file and made of it.
// All sizes are in bytes.
type Opened struct {
	Path    string // of the file; "" for anonymous memory
	Size    int64  // that the file has
	Wanted  int64  // Options.Bytes in whole pages
	Made    bool   // there was no file
	GivenUp int64  // size of the file whose superblock was damaged, with all it held; 0: none

	// Resized is the size that the file had whose blocks are in this one now; 0:
	// none. NotResized is why a file of another size than Wanted keeps it.
	Resized    int64
	NotResized error

	// Passed has an error for each name that something else has, which was left
	// alone: they match ErrOtherLayout or arena.ErrUnsafe.
	Passed []error
}

// Opened reports what Open found.
func (t *Tier) Opened() Opened { return t.opened }

// otherNames is how many names are tried besides Options.Path.
const otherNames = 9

// Names are those that a tier tries in turn for its file: path, path.1, …
func Names(path string) []string {
	names := []string{path}
	for i := range otherNames {
		names = append(names, fmt.Sprintf("%s.%d", path, i+1))
	}
	return names
}

// mapAny maps the file that was handed over, or the first of the Names that leads to
// an arena or to nothing.
func mapAny(o Options, size int64, seen *Opened) (*arena.Mapping, error) {
	if o.File != nil {
		m, err := arena.MapHandedOver(o.File, size, admit(o.File.Name(), size, seen))
		if err == nil {
			return m, nil
		}
		seen.Passed = append(seen.Passed, err)
	}
	names := Names(o.Path)
	for i := 0; ; i++ {
		m, err := arena.MapFile(names[i], size, admit(names[i], size, seen))
		other := errors.Is(err, ErrOtherLayout) || errors.Is(err, arena.ErrUnsafe)
		if err == nil {
			m.DropNext()
		}
		if !other || i == otherNames {
			return m, err
		}
		seen.Passed = append(seen.Passed, err)
	}
}

var errTooSmall = errors.New("its blocks do not all fit")

// resized brings an arena that holds blocks to another size: all of them are
// copied into a new file, which then takes the old one's place at once. Where
// they do not all fit, or the file system has no room for both files, the arena
// stays as it is. t is used up.
func (t *Tier) resized(o Options, size int64) (*Tier, error) {
	next, err := t.copied(o, size)
	if err != nil {
		t.opened.NotResized = err
		return t, nil
	}
	if err := next.arena.Publish(); err != nil {
		t.opened.NotResized = errors.Join(err, next.arena.Unlink(), next.Close())
		return t, nil
	}
	return next, t.Close()
}

// copied returns a tier of size bytes with all blocks of t, in a file that is not
// published yet.
func (t *Tier) copied(o Options, size int64) (*Tier, error) {
	room, err := t.arena.Room()
	if err == nil && room < size {
		err = fmt.Errorf("its file system has %d bytes free for the new one: %w", room, arena.ErrNoShare)
	}
	if err != nil {
		return nil, err
	}
	if t.Usage().Used > size {
		return nil, errTooSmall
	}
	m, err := arena.MapNext(t.opened.Path, size)
	if err != nil {
		return nil, err
	}
	seen := t.opened
	seen.Resized = t.opened.Size
	next, err := start(o, m, seen)
	if err != nil {
		return nil, err
	}
	next.opened.Made = false // the blocks in it were there before
	if err := next.takeAll(t); err != nil {
		return nil, errors.Join(err, m.Unlink(), next.Close())
	}
	return next, nil
}

// takeAll puts all that another tier recovered into this one, the oldest first.
func (t *Tier) takeAll(from *Tier) error {
	var all []tiers.Entry
	if err := from.Recover(func(e tiers.Entry) error { all = append(all, e); return nil }); err != nil {
		return err
	}
	age := func(e tiers.Entry) (seq uint64) {
		for _, n := range e.Names {
			seq = max(seq, n.Seq)
		}
		return seq
	}
	slices.SortFunc(all, func(x, y tiers.Entry) int { return cmp.Compare(age(x), age(y)) })
	for _, e := range all {
		p, err := from.Pin(e.Info.ID)
		if err != nil {
			return err
		}
		err = t.Put(context.Background(), tiers.Item{Info: e.Info, Names: e.Names, Data: p.Bytes()})
		p.Release()
		if errors.Is(err, tiers.ErrFull) || errors.Is(err, tiers.ErrTooLarge) {
			err = errTooSmall
		}
		if err != nil {
			return err
		}
	}
	for ns, r := range from.layouts { // nobody else uses it yet
		if err := t.SetLayout(ns, r.seq, r.layout); err != nil {
			return errTooSmall
		}
	}
	return nil
}

// Check returns an error when the arena file is not what it was: it matches
// arena.ErrLost when the file was truncated, be it that it has its size again.
// Then nothing in it may be served any more, and touching it may raise SIGBUS.
func (t *Tier) Check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed || t.super == nil {
		return nil
	}
	if err := t.arena.CheckSize(); err != nil {
		return err
	}
	if geometryOf(int64(len(t.arena.Bytes()))).checkSuper(t.super) != nil {
		return fmt.Errorf("memory: %s has no superblock any more: %w", t.opened.Path, arena.ErrLost)
	}
	return nil
}

// FileLinked reports whether the file still has its name, so that other processes
// can open it and a later rank finds it.
func (t *Tier) FileLinked() bool { return t.arena.Linked() }

// RemoveFile removes the file's name, if it still is the file's; the memory goes
// with the tier.
func (t *Tier) RemoveFile() error { return t.arena.Unlink() }

// KeepFile returns a keeper of the file, for who decides after Close whether it
// stays; nil without a file.
func (t *Tier) KeepFile() (*arena.Keeper, error) { return t.arena.Keep() }
