package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// Options configure a Store.
type Options struct {
	Dirs  []string // on local file systems, one for each disk; each must exist
	Shape Shape
	Files int // GPU files wanted: as many blocks

	// ContainerFiles is how many GPU files one container has a share of, default
	// 64: fewer containers are fewer descriptors, and a smaller one is made faster.
	ContainerFiles int

	Memory Memory
	Bytes  Bytes // of Memory, for NewHostRing

	// Ring moves the bytes, default NewHostRing with 8 workers. It gets the containers, by number: nil for those that
	// are not ready, which it gets by Add.
	Ring func(containers []vfs.File) Ring

	Notes Notes // nil: there are none

	Direct bool   // bypass the page cache for containers
	FS     vfs.FS // default vfs.OS

	unlocked bool // Dirs are not the kernel's: nothing keeps other processes out
}

// lockName is the file in each directory that keeps other processes out.
const lockName = "lock"

// Store keeps blocks by id. All methods are safe for concurrent use.
type Store struct {
	layout layout
	shape  Shape
	table  *Table
	notes  Notes
	pool   *pool
	ring   Ring
	fs     vfs.FS
	dir    string // of the log
	direct *vfs.Direct
	held   []*os.File         // the locks
	done   context.CancelFunc // ends what Close does not wait for
	alive  context.Context
	late   sync.WaitGroup // growth, transfers and log writes under way

	turn chan struct{} // holds one token; whoever has it uses log
	log  *journal
	head header // of the log

	mu struct {
		sync.Mutex
		blocks   map[block.ID]*stored
		reserved map[block.ID]bool
		free     vacant
		removed  []record // that the log does not have yet; their files are not free
		short    error    // why no more files are made, though some are missing
		closed   bool
		stats    Stats
	}
}

// vacant is the GPU files that a put can have.
type vacant struct {
	files []uint32     // the first is taken first
	lots  map[int]*Lot // by group, of those whose files are a lot's
}

// stored is a block that can be read.
type stored struct {
	record
	pins int
	gone bool // it was removed while pinned
}

// Stats counts.
type Stats struct {
	Files    int   // GPU files of the pool by now
	Wanted   int   // that were asked for
	Blocks   int   // that can be read
	Free     int   // files that a put can have at once
	Removed  int   // files that can be used again once the log has their removal
	Bytes    int64 // of the containers
	Table    int64 // bytes of the scatter table
	LogBytes int64

	Stored    uint64 // blocks registered since Open
	Retrieved uint64 // objects read and verified
	Corrupt   uint64 // objects whose checksum was wrong
	Failed    uint64 // transfers that failed
}

// Open opens what is there of the pool in Dirs; if that is nothing it makes the first containers, until ctx ends. The
// rest is made in the background, which writes all of its bytes: see Ready. What is
// there of another pool is replaced. Errors: ErrShape, ErrMemory, tiers.ErrUnavailable
// (also when another process has it), tiers.ErrFull (there is no room for one container).
func Open(ctx context.Context, o Options) (*Store, error) {
	o.ContainerFiles = cmp.Or(o.ContainerFiles, 64)
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	if err := o.Shape.Check(); err != nil {
		return nil, err
	}
	if len(o.Dirs) < 1 || len(o.Dirs) > o.Shape.Objects() || o.Files < 1 || o.Files > 1<<28 || o.ContainerFiles < 1 {
		return nil, fmt.Errorf("%w: %d directories, %d files, %d of them in a container; a directory has at least one object of each file", ErrShape, len(o.Dirs), o.Files, o.ContainerFiles)
	}
	if len(o.Memory.Tensors) != o.Shape.Objects() {
		return nil, fmt.Errorf("%w: %d tensors, the shape has %d", ErrMemory, len(o.Memory.Tensors), o.Shape.Objects())
	}
	table, err := NewTable(o.Memory, o.Shape.ObjectBytes())
	if err != nil {
		return nil, err
	}
	s := &Store{table: table, shape: o.Shape, fs: o.FS, dir: o.Dirs[0], turn: make(chan struct{}, 1), notes: o.Notes}
	if o.Notes == nil {
		s.notes = noNotes{}
	}
	s.layout = layout{o.Shape.Objects(), o.Shape.ObjectBytes(), len(o.Dirs), o.ContainerFiles}
	if err := s.layout.check(); err != nil {
		return nil, err
	}
	if !o.unlocked {
		for _, dir := range o.Dirs {
			f, err := hold(dir)
			if err != nil {
				return nil, errors.Join(err, s.release())
			}
			s.held = append(s.held, f)
		}
	}
	if err := s.open(ctx, o); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// hold keeps other processes out for as long as the file is open. It asks the
// kernel and not Options.FS, which has no locks.
func hold(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tiers.ErrUnavailable, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: another process uses %s, or its file system has no locks: %w", tiers.ErrUnavailable, dir, err), f.Close())
	}
	return f, nil
}

func (s *Store) open(ctx context.Context, o Options) error {
	head, blocks, newest, err := s.recoverLog()
	if err != nil {
		return fmt.Errorf("%w: %s: %w", tiers.ErrUnavailable, s.dir, err)
	}
	if head.pool == 0 || head.layout != s.layout {
		head, blocks = header{pool: rand.Uint64() | 1}, nil
		s.notes.Reset()
	}
	s.head = header{magic: logMagic, pool: head.pool, layout: s.layout, generation: newest + 1}
	fs := o.FS
	if o.Direct {
		s.direct = vfs.NewDirect(fs)
		fs = s.direct
	}
	switch s.pool, err = openPool(ctx, fs, o.Dirs, s.head, o.Files); {
	case isFull(err):
		return diskFull{fmt.Errorf("no room for a container of %d bytes in each of %q: free space there, or have fewer files or smaller containers: %w", s.layout.containerBytes(), o.Dirs, err)}
	case err != nil:
		return fmt.Errorf("%w: %w", tiers.ErrUnavailable, err)
	}
	if err := s.begin(blocks); err != nil {
		return err
	}
	if err := s.removeLogs(s.head.generation); err != nil {
		return fmt.Errorf("%w: %w", tiers.ErrUnavailable, err)
	}
	s.mu.stats.LogBytes = s.log.size
	s.ring = NewHostRing(s.pool.files, o.Bytes, 8)
	if o.Ring != nil {
		s.ring = o.Ring(s.pool.files)
	}
	s.alive, s.done = context.WithCancel(context.Background())
	s.turn <- struct{}{}
	s.late.Add(1)
	go s.grow()
	return nil
}

// begin takes over the blocks that there are and writes a log of them. Where the pool
// has left no room for that it gives up the last containers.
func (s *Store) begin(blocks map[uint32]record) (err error) {
	for {
		s.keep(blocks)
		if s.log, err = newJournal(s.fs, s.dir, s.head, s.registered(), s.notes.All); err == nil {
			s.notes.Written()
			return nil
		}
		last := s.pool.last()
		switch {
		case !isFull(err):
			return fmt.Errorf("%w: %w", tiers.ErrUnavailable, err)
		case last == 0:
			return unavailable(err)
		}
		if err := s.pool.giveUp(last); err != nil {
			return fmt.Errorf("%w: %w", tiers.ErrUnavailable, err)
		}
	}
}

// recoverLog reads the newest log that is whole, its notes too, and returns the highest generation
// there is. Logs that are none are passed over.
func (s *Store) recoverLog() (found header, blocks map[uint32]record, newest uint64, err error) {
	names, err := logNames(s.fs, s.dir)
	if err != nil {
		return found, nil, 0, err
	}
	for _, name := range names {
		var generation uint64
		if _, err := fmt.Sscanf(name, logPrefix+"%016x"+logSuffix, &generation); err != nil {
			continue
		}
		newest = max(newest, generation)
		if blocks != nil {
			continue
		}
		s.notes.Reset()
		h, b, err := readLog(s.fs, filepath.Join(s.dir, name), s.notes.Replay)
		if err == nil && h.generation == generation {
			found, blocks = h, b
		}
	}
	return found, blocks, newest, nil
}

// keep takes over what a log had, but for what lay in containers that are new or not there, or
// beyond the pool, and for a second copy of a block.
func (s *Store) keep(blocks map[uint32]record) {
	s.mu.blocks, s.mu.reserved, s.mu.free.files = map[block.ID]*stored{}, map[block.ID]bool{}, nil
	s.mu.free.lots = map[int]*Lot{}
	s.mu.stats.Files, s.mu.stats.Wanted, s.mu.stats.Bytes = 0, s.pool.wanted, 0
	for g := range s.pool.groups() {
		if !s.pool.ready(g) {
			continue
		}
		s.mu.stats.Bytes += int64(s.layout.dirs) * s.layout.containerBytes()
		for at, end := s.pool.group(g); at < end; at++ {
			s.mu.stats.Files++
			file := uint32(at)
			r, ok := blocks[file]
			if !ok || g == s.pool.fresh || s.mu.blocks[r.id] != nil {
				s.mu.free.files = append(s.mu.free.files, file)
				continue
			}
			s.mu.blocks[r.id] = &stored{record: r}
		}
	}
}

// registered lists all blocks for a new log.
func (s *Store) registered() []record {
	s.mu.Lock()
	all := make([]record, 0, len(s.mu.blocks))
	for _, b := range s.mu.blocks {
		all = append(all, b.record)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b record) int { return cmp.Compare(a.file, b.file) })
	return all
}

// removeLogs removes all logs but that of one generation.
func (s *Store) removeLogs(keep uint64) error {
	names, err := logNames(s.fs, s.dir)
	for _, name := range names {
		if name != logName(keep) {
			err = errors.Join(err, drop(s.fs, filepath.Join(s.dir, name)))
		}
	}
	return err
}

// release gives back what Open took.
func (s *Store) release() (err error) {
	if s.pool != nil {
		err = s.pool.close()
	}
	if s.log != nil {
		err = errors.Join(err, s.log.f.Close())
	}
	if s.direct != nil {
		s.direct.Close()
	}
	for _, f := range s.held {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Close makes all blocks and removals durable and closes the files. Calls that have not returned
// fail. Transfers under way are waited for until ctx ends; then the files stay
// open until the last of them has ended, and nobody else can open the pool before. Errors: the
// context's, those of the file system.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.runWithLog(ctx, true, s.flush)
	s.done()
	released := make(chan error, 1)
	go func() {
		s.late.Wait()
		released <- s.release()
	}()
	select {
	case failed := <-released:
		return errors.Join(err, failed)
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("%w: transfers have not ended: %w", tiers.ErrUnavailable, context.Cause(ctx)))
	}
}

// Has reports how many blocks in front of ids can be read: a prefix. It costs no
// I/O.
func (s *Store) Has(ids []block.ID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range ids {
		if s.mu.blocks[id] == nil {
			return i
		}
	}
	return len(ids)
}

// Each calls fn with all blocks, in no order, until it is false. It costs no I/O, and fn may
// call the store.
func (s *Store) Each(fn func(block.ID) bool) {
	for _, r := range s.registered() {
		if !fn(r.id) {
			return
		}
	}
}

// Locate returns which byte of which file is the one at at, below Shape.FileBytes, of a block, for those
// who look at a disk; false if the block can not be read.
func (s *Store) Locate(id block.ID, at int64) (path string, offset int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.mu.blocks[id]
	if b == nil {
		return "", 0, false
	}
	c, offset := s.layout.place(b.file, int(at/s.layout.bytes))
	return s.pool.path(c), offset + at%s.layout.bytes, true
}

// Remove forgets a block, whether it is there or not, and costs no I/O: a later
// Reserve writes it to the log. After a crash before that it is back. Readers that have pinned it go on.
func (s *Store) Remove(id block.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.mu.blocks[id]; b != nil {
		s.removeLocked(b)
	}
}

func (s *Store) removeLocked(b *stored) {
	if b.gone {
		return
	}
	delete(s.mu.blocks, b.id)
	b.gone = true
	s.freeIfUnusedLocked(b)
}

// freeIfUnusedLocked queues the removal of a block that is gone and that nobody reads.
func (s *Store) freeIfUnusedLocked(b *stored) {
	if b.gone && b.pins == 0 {
		s.mu.removed = append(s.mu.removed, record{kind: kindRemove, file: b.file, id: b.id})
	}
}

// Stats returns counters as of now.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.mu.stats
	st.Blocks, st.Free, st.Removed, st.Table = len(s.mu.blocks), len(s.mu.free.files), len(s.mu.removed), s.table.Bytes()
	return st
}
